//! Error messages of `briquette` for a newcomer's mistakes, word for word: `golden_errors.txt` has the texts, and the
//! test run with `BLESS=1` rewrites it.
#![cfg(unix)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use briquette_testkit::golden::{Shell, hold};

const TEXTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden_errors.txt");

const LINES: [&str; 54] = [
    "briquette inspekt gradient.bin",
    "briquette inspect",
    "briquette inspect absent.bin",
    "briquette inspect dir",
    "briquette inspect odd.bin",
    "briquette inspect nan.bin",
    "briquette inspect text.npy",
    "briquette inspect long.npy",
    "briquette inspect huge.npy",
    "briquette inspect whole.npy",
    "briquette inspect text.safetensors",
    "briquette inspect escape.safetensors",
    "briquette inspect gradient.bin --compressor topq",
    "briquette inspect gradient.bin --threads 30000",
    "briquette inspect gradient.bin --repeats 0",
    "briquette codec --compressor topk --in gradient.bin",
    "briquette codec --compressor topk --in absent.bin --out out.bin",
    "briquette codec --compressor topk --in gradient.bin --out absent/out.bin",
    "briquette plan",
    "briquette probe",
    "briquette probe --nodes a,b --node-rank 2 --port 29500",
    "briquette probe --nodes a --node-rank 0 --port 29500",
    "briquette probe --nodes a,b",
    "briquette probe --time 0s",
    "briquette plan --network 1gbit",
    "briquette plan --network 1gbit --values 1M",
    "briquette plan --network 1gbit --values 5B --compute 1ms",
    "briquette plan --network 1gbit --values many --compute 1",
    "briquette plan --network 1gbit --world 1",
    "briquette plan dir --network 1gbit",
    "briquette report",
    "briquette report absent",
    "briquette report dir",
    "briquette report dir --json --open",
    "briquette cert --out certs --name ''",
    "briquette cert --out certs --name ' '",
    "briquette cert --out certs --name 'not a name'",
    "briquette cert --out certs --days 0",
    "briquette cert --out made",
    "briquette launch --ranks 2",
    "briquette launch --ranks 0 -- true",
    "briquette launch --ranks 2 -- no-such-program",
    "briquette launch --ranks 2 -- ./dir",
    "briquette launch --ranks 2 -- ./odd.bin",
    "briquette launch --ranks 2 --port {taken} -- true",
    "briquette launch --ranks 2 --only-rank 2 -- true",
    "briquette launch --nodes a,b --node-rank 2 --port 29500 --ranks 1 -- true",
    "briquette launch --nodes a,b --node-rank 0 --port 29500 --ranks 1 -- true",
    "briquette launch --ranks 1 --token-file absent -- true",
    "briquette launch --ranks 1 --token-file empty -- true",
    "briquette launch --ranks 1 --token-file short -- true",
    "briquette launch --ranks 1 --token-file open -- true",
    "briquette launch --ranks 1 --tls dir -- true",
    "briquette launch --ranks 1 -- sh -c 'echo error: no data >&2; exit 3'",
];

/// Builds a `.npy` file with this shape and one value.
fn npy(descr: &str, shape: &str) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes(), &[0; 4]].concat()
}

fn files(directory: &Path) {
    let write = |name: &str, bytes: &[u8]| fs::write(directory.join(name), bytes).unwrap();
    fs::create_dir(directory.join("dir")).unwrap();
    fs::create_dir(directory.join("made")).unwrap();
    write("made/key.pem", b"");
    write("gradient.bin", &1.0_f32.to_le_bytes().repeat(100));
    write("odd.bin", &[0; 6]);
    write("nan.bin", &[1.0_f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat());
    write("text.npy", b"hello");
    write("long.npy", &npy("<f4", "()").into_iter().chain([0; 3]).collect::<Vec<_>>());
    write("huge.npy", &npy("<f4", "(9223372036854775807, 3)"));
    write("whole.npy", &npy("<i4", "(1,)"));
    write("text.safetensors", b"hello");
    let header = "{\"a\\u001b[2Jb\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    let nan = f32::NAN.to_le_bytes();
    write("escape.safetensors", &[&(header.len() as u64).to_le_bytes(), header.as_bytes(), &nan].concat());
    for (name, text, mode) in
        [("empty", "\n", 0o600), ("short", "fifteen-letters", 0o600), ("open", "sixteen-letters!", 0o644)]
    {
        write(name, text.as_bytes());
        fs::set_permissions(directory.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
}

/// Threat F3.
#[test]
fn mistakes_are_answered_word_for_word() {
    let directory = tempfile::tempdir().unwrap();
    files(directory.path());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let shell = Shell::new(directory.path(), env!("CARGO_BIN_EXE_briquette"));
    let shell = shell.replace(taken.local_addr().unwrap().port(), "{taken}");
    let texts = LINES.map(|line| shell.run(line));
    assert!(texts.iter().all(|text| !text.contains('\u{1b}')), "names from files reach the terminal escaped");
    hold(Path::new(TEXTS), &texts, std::env::var_os("BLESS").is_some());
    assert!(!directory.path().join("certs").exists() && !directory.path().join("out.bin").exists());
}
