//! Downloads from a local server that the test runs itself.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use briquette_datasets::{DataError, Download, ImageKind, ImageSource, Images, Mirror, TextSource};
use flate2::{Compression, write::GzEncoder};
use md5::{Digest, Md5};
use tempfile::tempdir;

use crate::{images, records};

/// Answers one request with these bytes and ends; times out after ten seconds.
fn serve_once(answer: Vec<u8>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let deadline = Instant::now() + Duration::from_secs(10);
    let server = std::thread::spawn(move || {
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("nobody asked: {error}"),
            }
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        let request = BufReader::new(stream.try_clone().unwrap()).lines();
        let head: Vec<String> = request.map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
        assert_eq!(head[0], "GET /cifar-100-binary.tar.gz HTTP/1.1");
        stream.write_all(&answer).unwrap();
    });
    (url, server)
}

fn http(body: &[u8], length: usize) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn archive(names: &[&str]) -> Vec<u8> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for name in names {
        let data = records(&[&[0, 5], &[1, 6]]);
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, format!("cifar-100-binary/{name}"), data.as_slice()).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn md5(bytes: &[u8]) -> String {
    format!("{:x}", Md5::digest(bytes))
}

fn source(cache: &Path, base_url: String, md5: Option<String>) -> ImageSource {
    let download = Download {
        quiet: true,
        cache: Some(cache.into()),
        mirror: Some(Mirror { base_url, md5 }),
        timeout: Duration::from_secs(10),
        ..Download::default()
    };
    ImageSource { download, ..ImageSource::new(ImageKind::Cifar100) }
}

/// Loads from a server with this answer, which must receive exactly one request.
fn load(cache: &Path, answer: Vec<u8>, md5: Option<String>) -> Result<Images, DataError> {
    let (url, server) = serve_once(answer);
    let loaded = source(cache, url, md5).load();
    server.join().unwrap();
    loaded
}

/// Returns the names in the cache directory, except the lock file.
fn left_in(cache: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(cache.join("briquette")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != ".cifar100.lock").collect()
}

const FILES: [&str; 3] = ["readme.txt", "train.bin", "test.bin"];

#[test]
fn archive_is_downloaded_once_and_then_read_from_the_cache() {
    let cache = tempdir().unwrap();
    let bytes = archive(&FILES);
    let first = load(cache.path(), http(&bytes, bytes.len()), Some(md5(&bytes))).unwrap();
    assert_eq!(first.train.labels(), [5, 6]);
    assert_eq!(left_in(cache.path()), ["cifar100"]);
    assert!(!cache.path().join("briquette/cifar100/readme.txt").exists());
    let again = source(cache.path(), "http://127.0.0.1:1".to_owned(), None).load().unwrap();
    assert_eq!(first, again);
}

#[test]
fn ranks_that_start_together_download_once() {
    let cache = tempdir().unwrap();
    let bytes = archive(&FILES);
    let (url, server) = serve_once(http(&bytes, bytes.len())); // a second request would be refused
    let source = source(cache.path(), url, Some(md5(&bytes)));
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|_| scope.spawn(|| source.load())).collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap().unwrap().train.labels(), [5, 6]);
        }
    });
    server.join().unwrap();
}

/// Threat F4.
#[test]
fn archive_with_another_checksum_is_refused_and_leaves_nothing() {
    let cache = tempdir().unwrap();
    let bytes = archive(&FILES);
    let error = load(cache.path(), http(&bytes, bytes.len()), None).unwrap_err();
    let DataError::Checksum { file, expected, got } = &error else { panic!("{error}") };
    assert!(file.ends_with("/cifar-100-binary.tar.gz"), "{file}");
    assert_eq!((expected.as_str(), got), ("03b5dce01913d631647c71ecec9e9cb8", &md5(&bytes)));
    assert_eq!(left_in(cache.path()), [""; 0]);
}

/// Threat F4.
#[test]
fn archive_without_a_wanted_file_is_refused() {
    let cache = tempdir().unwrap();
    let bytes = archive(&["train.bin"]);
    let error = load(cache.path(), http(&bytes, bytes.len()), Some(md5(&bytes))).unwrap_err();
    assert!(error.to_string().ends_with("/cifar-100-binary.tar.gz: holds no test.bin"), "{error}");
    assert_eq!(left_in(cache.path()), [""; 0]);
}

/// Threat F4.
#[test]
fn archive_that_cannot_be_unpacked_is_refused() {
    let cache = tempdir().unwrap();
    let error = load(cache.path(), http(b"nothing", 7), Some(md5(b"nothing"))).unwrap_err();
    assert!(matches!(error, DataError::Archive { .. }), "{error}");
    assert!(error.to_string().contains("cannot be unpacked: "), "{error}");
}

#[test]
fn connection_cut_in_the_middle_is_an_error_and_leaves_nothing() {
    let cache = tempdir().unwrap();
    let error = load(cache.path(), http(b"half", 8), None).unwrap_err();
    assert!(matches!(error, DataError::NotFound { .. }), "{error}");
    assert_eq!(left_in(cache.path()), [""; 0]);
}

#[test]
fn what_a_killed_download_left_is_removed_by_the_next() {
    let cache = tempdir().unwrap();
    let own = cache.path().join("briquette");
    std::fs::create_dir_all(own.join(".cifar100-Ab12Cd")).unwrap();
    std::fs::write(own.join(".cifar100-Ab12Cd/cifar-100-binary.tar.gz"), "half").unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::open(own.join(".cifar100-Ab12Cd")).unwrap().set_modified(long_ago).unwrap();
    // Another data set's, and one that may still be at work on another host.
    std::fs::create_dir_all(own.join(".cifar10-Ab12Cd")).unwrap();
    std::fs::create_dir_all(own.join(".cifar100-Ef34Gh")).unwrap();
    let bytes = archive(&FILES);
    load(cache.path(), http(&bytes, bytes.len()), Some(md5(&bytes))).unwrap();
    let mut left = left_in(cache.path());
    left.sort();
    assert_eq!(left, [".cifar10-Ab12Cd", ".cifar100-Ef34Gh", "cifar100"]);
}

#[test]
fn missing_page_is_named() {
    let cache = tempdir().unwrap();
    let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let error = load(cache.path(), answer.to_vec(), None).unwrap_err();
    assert!(error.to_string().contains("404"), "{error}");
}

#[test]
fn unreachable_server_gives_one_error_that_says_everything() {
    let cache = tempdir().unwrap();
    // A port that was free a moment ago and has no listener now.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let source = source(cache.path(), format!("http://127.0.0.1:{port}"), None);
    let text = source.load().unwrap_err().to_string();
    for part in [
        "CIFAR-100 was not found, and could not be downloaded",
        &format!("looked in: {}", cache.path().join("briquette/cifar100").display()),
        "files wanted: train.bin, test.bin (also accepted: a subset named train*.bin and test*.bin",
        &format!("source tried: http://127.0.0.1:{port}/cifar-100-binary.tar.gz: "),
        "--data DIR",
        "--dataset generated",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn silent_server_is_given_up_at_the_deadline() {
    let cache = tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap(); // accepts, never answers
    let mut source = source(cache.path(), format!("http://{}", listener.local_addr().unwrap()), None);
    source.download.timeout = Duration::from_millis(300);
    let error = source.load().unwrap_err();
    assert!(matches!(error, DataError::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("timeout"), "{error}");
}

#[test]
fn downloading_can_be_switched_off() {
    let dir = tempdir().unwrap();
    let source = ImageSource { dir: None, ..images(ImageKind::Cifar10, dir.path()) };
    let text = source.load().unwrap_err().to_string();
    assert!(text.contains("cifar-10-binary.tar.gz: downloading is switched off"), "{text}");
}

#[test]
fn burn_cache_is_used_for_ag_news() {
    let cache = tempdir().unwrap();
    let burn = cache.path().join("burn-dataset/ag_news_csv");
    std::fs::create_dir_all(&burn).unwrap();
    std::fs::write(burn.join("train.csv"), "1,a,b\n").unwrap();
    std::fs::write(burn.join("test.csv"), "2,c,d\n").unwrap();
    let mut source = TextSource { dir: None, ..crate::texts(cache.path()) };
    source.download.cache = Some(cache.path().into());
    assert_eq!(source.load().unwrap().train.len(), 1);
}

/// The cache has files, which must not be read instead of the requested ones.
#[test]
fn a_directory_that_was_given_is_the_only_one_that_is_read() {
    let (cache, given) = (tempdir().unwrap(), tempdir().unwrap());
    let own = cache.path().join("briquette/cifar100");
    std::fs::create_dir_all(&own).unwrap();
    for name in ["train.bin", "test.bin"] {
        std::fs::write(own.join(name), records(&[&[0, 5]])).unwrap();
    }
    std::fs::write(given.path().join("file"), "").unwrap();
    let source = |dir: Option<PathBuf>| {
        let download = Download { allowed: false, cache: Some(cache.path().into()), ..Download::default() };
        ImageSource { dir, download, ..ImageSource::new(ImageKind::Cifar100) }
    };
    assert_eq!(source(None).load().unwrap().train.labels(), [5]);
    for (name, problem) in
        [("", "it has no CIFAR-100 files"), ("tpyo", "there is no such directory"), ("file", "it is not a directory")]
    {
        let dir = given.path().join(name);
        let error = source(Some(dir.clone())).load().unwrap_err();
        assert!(matches!(error, DataError::Missing { .. }) && !error.may_pass(), "{error}");
        let text = error.to_string();
        let begin = format!("--data {}: {problem}; files wanted: train.bin, test.bin", dir.display());
        assert!(text.starts_with(&begin) && text.ends_with("downloaded files are used"), "{text}");
    }
}

/// The system's reason is reported for a path that may exist but cannot be inspected. A link to itself stands for any
/// such refusal: a test may run as a user to whom no permission is denied.
#[cfg(unix)]
#[test]
fn a_directory_that_cannot_be_looked_into_says_why() {
    let given = tempdir().unwrap();
    let dir = given.path().join("loop");
    std::os::unix::fs::symlink(&dir, &dir).unwrap();
    let error = images(ImageKind::Cifar100, &dir).load().unwrap_err();
    let DataError::Io { path, source, .. } = &error else { panic!("{error}") };
    assert!(path.starts_with(&dir) && source.to_string().contains("symbolic links"), "{error}: {source}");
}
