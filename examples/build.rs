//! Build information for a run's summary: the revision of the sources and the version of Burn. Also locates libtorch.

use std::path::Path;
use std::process::Command;

fn main() {
    // Asked now, not when this was compiled: clones that share a target directory share this program.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&here).join("..");
    // Whatever may change the answers.
    for path in ["Cargo.lock", "Cargo.toml", "crates", "datasets/src", "examples/src", "examples/build.rs"] {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    if let Some(log) = git(&root, &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={}", root.join(log).display());
    }
    println!("cargo::rustc-env=BRIQUETTE_GIT_REVISION={}", revision(&root));
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap_or_default();
    println!("cargo::rustc-env=BRIQUETTE_BURN_VERSION={}", locked(&lock, "burn").unwrap_or("unknown"));
    find_libtorch();
}

/// Makes programs find the libtorch they were built with, even if LD_LIBRARY_PATH is not set.
fn find_libtorch() {
    if std::env::var("CARGO_FEATURE_TCH").is_err() || cfg!(not(unix)) {
        return;
    }
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
}

/// Returns the last commit; changes to results, documents and untracked files do not make it dirty.
fn revision(root: &Path) -> String {
    let Some(commit) = git(root, &["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let sources = ["Cargo.lock", "Cargo.toml", "crates", "datasets", "examples"];
    let changed = git(root, &[&["status", "--porcelain", "--untracked-files=no", "--"][..], &sources].concat());
    let dirty = changed.is_none_or(|changed| !changed.is_empty());
    if dirty { format!("{commit}-dirty") } else { commit }
}

/// Returns git's output without the trailing newline; `None` without git or a repository.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the version of a package in Cargo.lock.
fn locked<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    lines.nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')
}
