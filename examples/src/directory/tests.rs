//! A process that is killed at any point of a replacement leaves either the old or the new run.

use std::collections::BTreeMap;

use tempfile::TempDir;

use super::*;
use crate::settings::Options;

const OLD: &str = "0ld";

/// Creates a directory with a complete run in it.
fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    fs::create_dir_all(path.join(CHECKPOINTS).join("step-00000003")).unwrap();
    fs::write(path.join(CHECKPOINTS).join("step-00000003/manifest.json"), "{}").unwrap();
    fs::write(path.join(METRICS), "records\n").unwrap();
    fs::write(path.join(EVALUATIONS), "[]\n").unwrap();
    fs::write(path.join(SUMMARY), "summary\n").unwrap();
    fs::write(path.join(GRADIENT), "gradient\n").unwrap();
    fs::create_dir(path.join(FRAMES)).unwrap();
    fs::write(path.join(FRAMES).join("rank-0"), "frames\n").unwrap();
    fs::create_dir(path.join(TRANSFERS)).unwrap();
    fs::write(path.join(TRANSFERS).join("rank-0.json"), "{}\n").unwrap();
    fs::write(path.join(CONFIG), format!("run = \"{OLD}\"\nranks = 3\n")).unwrap();
    directory
}

/// Returns every file but the lock, and its contents.
fn contents(path: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(contents(&entry));
        } else if !entry.ends_with("lock") {
            found.insert(entry.clone(), fs::read_to_string(entry).unwrap());
        }
    }
    found
}

fn settings(out: &Path) -> Settings {
    Options { out: Some(out.to_owned()), ..Options::default() }.resolve().unwrap()
}

fn overwrite() -> Control {
    Control { overwrite: true, ..Control::default() }
}

#[test]
fn a_process_killed_before_the_new_run_has_begun_leaves_the_earlier_one_whole() {
    for moved in 0..=FILES.len() {
        let directory = directory();
        let path = directory.path();
        let before = contents(path);
        let aside = path.join(format!("{REPLACED}new"));
        fs::create_dir(&aside).unwrap();
        FILES[..moved].iter().for_each(|name| fs::rename(path.join(name), aside.join(name)).unwrap());
        // Half of what would have begun it.
        fs::write(path.join("config.partial"), "run = \"ne").unwrap();
        assert!(holds_a_run(path));
        let (claimed, start) = RunDirectory::claim(path, &Control { resume: true, ..Control::default() }).unwrap();
        assert_eq!(start, Start { run: Some(OLD.into()), resumed: true });
        drop(claimed);
        fs::remove_file(path.join("config.partial")).unwrap();
        assert_eq!(contents(path), before, "{moved} moved");
        assert!(!aside.exists());
    }
}

#[test]
fn a_process_killed_when_the_new_run_has_begun_leaves_nothing_of_the_earlier_one() {
    for removed in 0..=FILES.len() {
        let directory = directory();
        let path = directory.path();
        let aside = path.join(format!("{REPLACED}new"));
        fs::create_dir(&aside).unwrap();
        FILES.iter().for_each(|name| fs::rename(path.join(name), aside.join(name)).unwrap());
        fs::write(path.join(CONFIG), "run = \"new\"\n").unwrap();
        for name in &FILES[..removed] {
            let file = aside.join(name);
            if file.is_dir() { fs::remove_dir_all(file).unwrap() } else { fs::remove_file(file).unwrap() }
        }
        let (claimed, start) = RunDirectory::claim(path, &overwrite()).unwrap();
        assert!(!start.resumed);
        assert_eq!(contents(path).into_values().collect::<Vec<_>>(), ["run = \"new\"\n"], "{removed} removed");
        drop(claimed);
    }
}

#[test]
fn a_run_that_cannot_begin_gives_back_what_it_moved_aside() {
    let directory = directory();
    let path = directory.path();
    let before = contents(path);
    // In the way of the file that would become config.toml, as a full disk is.
    fs::create_dir(path.join("config.partial")).unwrap();
    let (claimed, start) = RunDirectory::claim(path, &overwrite()).unwrap();
    let error = claimed.begin(&settings(path), &start.run.unwrap()).unwrap_err();
    assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
    assert_eq!(contents(path), before);
}

#[test]
fn a_run_that_begins_takes_the_whole_place() {
    let directory = directory();
    let path = directory.path();
    let (claimed, start) = RunDirectory::claim(path, &overwrite()).unwrap();
    let run = start.run.unwrap();
    drop(claimed.begin(&settings(path), &run).unwrap());
    let names: Vec<PathBuf> = contents(path).into_keys().collect();
    assert_eq!(names, [path.join(CONFIG), path.join(METRICS)]);
    assert_eq!(saved_run(path).unwrap(), Some(run));
    assert_eq!(fs::read(path.join(METRICS)).unwrap(), b"");
}

#[test]
fn settings_that_cannot_be_read_do_not_keep_a_run_from_being_replaced() {
    let directory = directory();
    fs::write(directory.path().join(CONFIG), [0xff, b'=']).unwrap();
    let (claimed, start) = RunDirectory::claim(directory.path(), &overwrite()).unwrap();
    drop(claimed.begin(&settings(directory.path()), start.run.as_deref().unwrap()).unwrap());
    assert_eq!(saved_run(directory.path()).unwrap(), start.run);
}

#[test]
fn another_run_is_neither_begun_over_nor_continued_unasked() {
    let directory = directory();
    let before = contents(directory.path());
    let error = RunDirectory::claim(directory.path(), &Control::default()).unwrap_err();
    assert!(error.is::<Refused>() && error.to_string().contains("there is a run already"), "{error}");
    assert_eq!(contents(directory.path()), before);
}
