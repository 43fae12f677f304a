//! Writes `seeds/`, the initial inputs of every target: the golden frames, and representative settings.
//!
//! ```sh
//! cd fuzz && cargo run --example seeds
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use briquette_cli::file::Vector;
use briquette_core::comm::Scope;
use briquette_core::config::{CompressorConfig, Config, representatives};
use briquette_core::{Key, Message};
use briquette_core::state::State;
use briquette_fuzz::claims::frame_of;
use briquette_fuzz::files::{npy, safetensors};
use briquette_fuzz::golden::{GOLDEN, content};
use briquette_tcp::frame::{Header, Kind};

fn main() -> io::Result<()> {
    briquette_zoo::install();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let targets: Vec<PathBuf> = fs::read_dir(root.join("fuzz_targets"))?.flatten().map(|e| e.path()).collect();
    let target = |kind: u8| {
        let name = targets.iter().filter_map(|path| path.file_stem()?.to_str());
        name.into_iter().find(|name| name.starts_with(&format!("kind_{kind:02}_"))).expect("a target for every kind")
    };
    let seeds = root.join("seeds");
    if seeds.exists() {
        fs::remove_dir_all(&seeds)?;
    }
    for (number, (compressor, x, text)) in GOLDEN.iter().enumerate() {
        let content = content(text);
        let (kind, name) = (content[0], format!("golden_{number:02}"));
        write(&seeds, target(kind), &name, &content[1..])?;
        write(&seeds, "frame", &name, &frame_of(kind, &content[1..]))?;
        if !compressor.is_empty() {
            write(&seeds, "compressor_text", &name, compressor.as_bytes())?;
            write(&seeds, "compressor", &name, &input(compressor, x))?;
        }
    }
    let long: Vec<f32> = (0..150).map(|i| (i as f32 * 0.7).sin() * 10_f32.powi(i % 7 - 3)).collect();
    for (number, compressor) in compressors().into_iter().enumerate() {
        let (name, text) = (format!("other_{number:02}"), compressor.to_string());
        write(&seeds, "compressor_text", &name, text.as_bytes())?;
        write(&seeds, "compressor", &name, &input(&text, &long[..24]))?;
        let (mut message, mut bytes) = (Message::default(), Vec::new());
        compressor.build().compress_into(&long, Key::new(1), &mut message);
        message.encode_into(&mut bytes);
        let kind = target(bytes[3]);
        write(&seeds, kind, &name, &bytes[4..bytes.len() - 4])?;
    }
    for (number, config) in settings().into_iter().enumerate() {
        let text = toml::to_string(&config).map_err(io::Error::other)?;
        write(&seeds, "settings", &format!("settings_{number:02}"), text.as_bytes())?;
    }
    tcp(&seeds)?;
    checkpoint(&seeds)?;
    files(&seeds)
}

/// Frames as they are on a link, the list that creates some, openings, introductions and answers.
fn tcp(seeds: &Path) -> io::Result<()> {
    let frame = |kind, number, frame: &[u8]| {
        let scope = Scope { operation: "exchange", step: 3, bucket: Some(1) };
        let header = Header { kind, len: frame.len(), number, tag: scope.into(), checksum: crc32fast::hash(frame) };
        [&header.encode()[..], frame].concat()
    };
    let stream = [frame(Kind::Data, 0, b"first"), frame(Kind::Data, 1, b""), frame(Kind::Goodbye, 2, b"")].concat();
    write(seeds, "tcp_stream", "frames", &stream)?;
    write(seeds, "tcp_stream", "list", &[0, 2, 40, 7, 9, 0, 1, 49, 8, 3, 0, 0, 255, 0, 0])?;
    let opening = [b"\x07BRIQTCP2", &[5; 32][..], &[0; 32]].concat();
    let said = |text: &[u8]| [&opening[..], &(text.len() as u32).to_le_bytes(), text, &[9; 32]].concat();
    let texts = [
        r#"{"rank":1,"to":0,"world":2,"version":"0","role":{"Join":{"address":"a:1"}}}"#,
        r#"{"rank":1,"to":0,"world":2,"version":"0","role":{"Data":{"session":"s"}}}"#,
        r#""Welcome""#,
        r#"{"Refused":"no"}"#,
    ];
    for (number, text) in texts.into_iter().enumerate() {
        let name = format!("text_{number}");
        write(seeds, "tcp_introduction", &name, text.as_bytes())?;
        write(seeds, "tcp_handshake", &name, &said(text.as_bytes()))?;
    }
    Ok(())
}

/// A manifest, a state of every kind of value, and short exchanges.
fn checkpoint(seeds: &Path) -> io::Result<()> {
    let notes = r#""step": 7, "world": 2, "checksums": [1, 4294967295], "common": {"0": 5}, "notes": {"total steps": "9"}"#;
    let plain: String = notes.replace("total steps", "total_steps").split(' ').collect::<String>().replace('_', " ");
    let sum = crc32fast::hash(format!("{{{plain}}}").as_bytes());
    write(seeds, "manifest", "whole", format!("{{{notes}, \"crc32\": {sum}}}").as_bytes())?;
    let mut state = State::default();
    state.put("residual", vec![1.0_f32, -0.5]);
    state.put("seconds", vec![0.5_f64]);
    state.put("clock", 2.5_f64);
    state.put("step", 390_u64);
    write(seeds, "state", "all", &briquette_fuzz::checkpoint::claims::write(&state))?;
    write(seeds, "step_header", "zeros", &[0; 300])?;
    write(seeds, "step_header", "ones", &[0x7f; 400])?;
    // A worker with a model of one value receives the task of a gradient; a server of one value gets version 0, a sample, loss
    // 0, a gradient.
    let gradient = [&[1, 1, 0, 1][..], &[0; 14], &[3]].concat();
    write(seeds, "server", "assignment", &gradient)?;
    let said = [&[0; 8][..], &[1], &[0; 15], &[1, 0, 0, 0, 0]].concat();
    write(seeds, "server", "contribution", &[&[0, 1, 0, 8][..], &said, &[1, 0, 0, 0, 0, 0, 0, 0]].concat())?;
    let quantiles = [1, 24, 16, 7, 200, 3, 9, 0, 2, 8, 0, 1, 5];
    write(seeds, "sparse_all_reduce", "quantiles", &quantiles)
}

/// Vectors of one tensor and of several.
fn files(seeds: &Path) -> io::Result<()> {
    let one = Vector { values: vec![1.0, -2.5, 0.0, 3e-8, 7.0, 9.0], tensors: vec![("a".into(), vec![2, 3])], notes: vec![] };
    let more = [("b".into(), vec![0, 4]), ("c".into(), vec![])];
    let values = one.values.iter().copied().chain([5.0]).collect();
    let all = Vector { values, tensors: one.tensors.iter().cloned().chain(more).collect(), notes: vec![] };
    let text = String::from_utf8_lossy(&npy(&one)).replace("False", "True");
    write(seeds, "npy", "c_order", &npy(&one))?;
    write(seeds, "npy", "text", text.as_bytes())?;
    write(seeds, "safetensors", "all", &safetensors(&all))
}

/// Returns an input for `briquette_fuzz::compress`.
fn input(compressor: &str, x: &[f32]) -> Vec<u8> {
    let values = x.iter().flat_map(|v| v.to_le_bytes());
    compressor.bytes().chain(*b"\n\x07\0\0\0").chain(values).collect()
}

/// Returns one of each, and additional ones of kinds with few seeds.
fn compressors() -> Vec<CompressorConfig> {
    let more = ["topk:3x+qsgd:s127:7:l2:elias", "topk:3x+one-bit:5", "qsgd:8:20:l2:elias", "dither:1.1:127:30:l1"];
    let more = more.map(|text| text.parse().expect("the text of a compressor"));
    CompressorConfig::defaults().into_iter().chain(more).collect()
}

/// Returns a minimal set that includes every setting.
fn settings() -> Vec<Config> {
    let mut seen = std::collections::BTreeSet::new();
    let words = |config: &Config| {
        let text = toml::to_string(config).unwrap_or_default();
        text.split([' ', '\n', '=', '.']).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut new = |config: &Config| words(config).into_iter().filter(|word| seen.insert(word.clone())).count() > 0;
    let mut all = representatives();
    // The longest texts first.
    all.sort_by_key(|config| std::cmp::Reverse(words(config).len()));
    all.retain(|config| new(config));
    all
}

fn write(seeds: &Path, target: &str, name: &str, content: &[u8]) -> io::Result<()> {
    let folder = seeds.join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), content)
}
