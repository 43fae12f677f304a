//! The quickstart as a program: its table, its page, and its exit code.
#![cfg(unix)]

use std::fs;
use std::time::Duration;

use crate::common::Runs;
use roxmltree::{Document, Node, ParsingOptions};

const QUICKSTART: &str = env!("CARGO_BIN_EXE_quickstart");
const SMALL: &str = "--ranks 2 --steps 17 --network 20mbit,5ms --plain --out run";
/// More than ten times its duration on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect()
}

fn elements<'a, 'input>(page: &'a Document<'input>, name: &str) -> Vec<Node<'a, 'input>> {
    page.descendants().filter(|node| node.tag_name().name() == name).collect()
}

#[test]
fn the_page_is_well_formed_needs_nothing_else_and_has_the_numbers_of_the_table() {
    let runs = Runs::default();
    let ended = runs.start(QUICKSTART, &format!("{SMALL} --report pages/<&>.html")).within(LIMIT).end().succeeds();
    let path = runs.path("pages/<&>.html").canonicalize().unwrap();
    assert!(ended.stdout.contains(&format!("Report: {}\n", path.display())), "{}", ended.stdout);
    let page = fs::read_to_string(path).unwrap();
    let page = Document::parse_with_options(&page, ParsingOptions { allow_dtd: true, ..ParsingOptions::default() });
    let page = page.unwrap_or_else(|error| panic!("not well-formed: {error}"));

    // Every row of the terminal's table, cell by cell.
    let rows: Vec<Vec<String>> =
        elements(&page, "tr").iter().map(|row| row.children().filter(Node::is_element).map(text).collect()).collect();
    for name in ["dense", "auto"] {
        let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("no row {name}: {rows:?}"));
        let shown = ended.stdout.lines().find(|line| line.starts_with(&format!("│ {name} "))).unwrap_or_default();
        assert_eq!(row.len(), 5);
        assert!(row.iter().all(|cell| shown.contains(cell.as_str())), "{row:?} in {shown}");
    }
    let verdict = ended.stdout.lines().find(|line| line.starts_with("auto sends ")).unwrap();
    assert_eq!(text(elements(&page, "p")[0]), verdict);

    // Three charts, with a line for each run in the first two.
    let charts = elements(&page, "svg");
    let lines = |chart: &Node<'_, '_>| {
        chart
            .descendants()
            .filter(|node| node.attribute("class").is_some_and(|class| class.starts_with("line")))
            .count()
    };
    assert_eq!(charts.iter().map(lines).collect::<Vec<_>>(), [2, 2, 1]);
    // The reasons of the controller and the layers are those on file.
    let records = runs.metrics("run/auto");
    let reasons: Vec<_> = records.iter().filter_map(|record| record.reason.clone()).collect();
    assert!(!reasons.is_empty());
    assert!(reasons.iter().all(|reason| rows.iter().any(|row| row.contains(reason))), "{reasons:?}");
    let slots = &records.iter().find(|record| !record.slots.is_empty()).unwrap().slots;
    assert!(slots.iter().all(|slot| rows.iter().any(|row| row[0] == slot.path)));
    assert!(rows.contains(&vec!["seed".to_owned(), "1".to_owned()]));
    assert!(rows.contains(&vec!["command".to_owned(), format!("quickstart {SMALL} --report pages/<&>.html")]));

    // Nothing from elsewhere, and nothing that runs.
    for node in page.descendants() {
        assert!(!["script", "link", "img", "iframe"].contains(&node.tag_name().name()));
        assert!(node.attributes().all(|attribute| !["src", "href"].contains(&attribute.name())));
    }
}

#[test]
fn one_rank_alone_has_a_page_too_and_no_report_writes_none() {
    let runs = Runs::default();
    let flags = "--ranks 1 --steps 2 --plain --out run";
    let ended = runs.start(QUICKSTART, flags).within(LIMIT).end().succeeds();
    assert!(ended.stdout.contains("One rank alone sends nothing"), "{}", ended.stdout);
    let page = runs.text("run", "report.html");
    assert!(page.contains("Nothing was sent"), "{page}");
    assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    fs::remove_file(runs.path("run/report.html")).unwrap();
    let ended = runs.start(QUICKSTART, &format!("{flags} --no-report")).within(LIMIT).end().succeeds();
    assert!(!ended.stdout.contains("Report:") && !runs.path("run/report.html").exists(), "{}", ended.stdout);
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let runs = Runs::default();
    fs::create_dir(runs.path("pages")).unwrap();
    fs::write(runs.path("file"), "").unwrap();
    for (report, words) in [("pages", "this is a directory"), ("file/page.html", "cannot write")] {
        let ended = runs.run(QUICKSTART, &format!("{SMALL} --report {report}"));
        ended.refused(&[&format!("--report {report}"), words]);
        assert!(!runs.path("run").exists());
    }
}

#[test]
fn an_interrupt_ends_it_after_the_step_and_leaves_no_page() {
    let runs = Runs::default();
    let mut running = runs.start(QUICKSTART, "--ranks 2 --steps 100000 --plain --out run").within(LIMIT);
    let metrics = runs.path("run/dense/metrics.jsonl");
    running.wait_until(|| fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= 2));
    running.signal("INT");
    let ended = running.end();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(ended.stderr.contains("interrupted: there is nothing to compare"), "{}", ended.stderr);
    assert!(!runs.path("run/auto").exists() && !runs.path("run/report.html").exists());
}
