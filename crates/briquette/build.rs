//! Under the feature `guide`, the book's pages for rustdoc: links between pages become links between modules, links to anything else (the
//! decisions and the evidence, too) lead to the repository, and fragments of code are not run.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_GUIDE").is_none() {
        return;
    }
    println!("cargo:rerun-if-changed=guide");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets it"));
    let repository = env::var("CARGO_PKG_REPOSITORY").expect("Cargo sets it");
    let mut pages: Vec<_> = fs::read_dir("guide")
        .expect("the book is beside this file")
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".md")?.to_owned()))
        .filter(|name| name != "SUMMARY" && name != "index")
        .collect();
    pages.sort();
    let mut modules = String::new();
    for name in &pages {
        let text = fs::read_to_string(Path::new("guide").join(format!("{name}.md"))).expect("it is text");
        println!("cargo:rerun-if-changed=guide/{name}.md");
        let page = out.join(format!("{name}.md"));
        fs::write(&page, rustdoc(&text, &pages, &repository)).expect("Cargo's own directory");
        modules += &format!("#[doc = include_str!({page:?})]\npub mod {} {{}}\n", module(name));
    }
    let index = fs::read_to_string("guide/index.md").expect("it is text");
    let manifest = fs::read_to_string("Cargo.toml").expect("Cargo has read it");
    let index =
        format!("{}\n# Features of this crate\n\n{}", rustdoc(&index, &pages, &repository), features(&manifest));
    fs::write(out.join("index.md"), index).expect("Cargo's own directory");
    fs::write(out.join("guide.rs"), modules).expect("Cargo's own directory");
}

fn module(page: &str) -> String {
    page.replace('-', "_")
}

/// A line for each feature that has a comment.
fn features(manifest: &str) -> String {
    let lines =
        manifest.lines().skip_while(|line| *line != "[features]").skip(1).take_while(|line| !line.starts_with('['));
    let (mut list, mut said) = (String::new(), Vec::new());
    for line in lines {
        if let Some(text) = line.strip_prefix("## ") {
            said.push(text);
        } else if let Some((name, _)) = line.split_once(" = ").filter(|_| !said.is_empty()) {
            list += &format!("- `{name}`: {}\n", said.join(" "));
            said.clear();
        }
    }
    list
}

/// A page as rustdoc shows it.
fn rustdoc(text: &str, pages: &[String], repository: &str) -> String {
    let text = text.replace("```rust\n", "```rust,ignore\n");
    let mut parts = text.split("](");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        let (path, anchor) =
            target.split_once('#').map_or((target, String::new()), |(path, at)| (path, format!("#{at}")));
        let target = match path.strip_suffix(".md") {
            _ if path.is_empty() || path.contains("://") => target.to_owned(),
            Some(page) if pages.iter().any(|other| other == page) => format!("crate::guide::{}{anchor}", module(page)),
            _ => {
                // A picture is shown, so it is linked as its bytes.
                let view = if path.ends_with(".svg") || path.ends_with(".png") { "raw" } else { "blob" };
                match path.strip_prefix("../") {
                    Some(above) => format!("{repository}/{view}/main/{above}{anchor}"),
                    None => format!("{repository}/{view}/main/docs/{path}{anchor}"),
                }
            }
        };
        out += &format!("]({target}){rest}");
    }
    out
}
