//! Section of failed runs: the ranks that caused it, and the last transfers of each rank.

use briquette_core::comm::{Record, Transfer, Way};

use super::{CURVES, Page, seconds};
use crate::report::groups::Group;
use crate::report::html::{details, dim, table};
use crate::report::svg::escaped;
use crate::terminal::bytes;

/// Transfers of each rank that are shown.
const TRANSFERS: usize = 100;

impl Page {
    /// Adds the causes of failures, of the runs whose ranks left records of their last transfers.
    pub(super) fn failures(&mut self, groups: &[Group]) {
        let runs = groups.iter().flat_map(|group| &group.runs).filter(|run| !run.transfers.is_empty()).take(CURVES);
        let mut body = String::new();
        for run in runs {
            body += &dim(run.path.display());
            body += &run.culprits.iter().map(|why| format!("<p>{}.</p>\n", escaped(why))).collect::<String>();
            let rows: Vec<_> = run.transfers.iter().map(last_transfer).collect();
            body += &table("", &["rank", "failure", "last transfer", "step", "waited"], &rows);
            let all = run.transfers.iter().map(|record| {
                let rows: Vec<_> = record.transfers.iter().rev().take(TRANSFERS).map(transfer).collect();
                let columns = ["start", "transfer", "bytes", "seconds"];
                details(&format!("Last transfers of rank {}", record.rank), &table("numbers", &columns, &rows))
            });
            body += &all.collect::<String>();
        }
        if !body.is_empty() {
            self.add("Last transfers", &body);
        }
    }
}

/// Returns a rank's failure, and the transfer that it was in.
fn last_transfer(record: &Record) -> Vec<String> {
    let failure = record.failure.as_ref();
    let last = record.transfers.iter().rev().find(|transfer| transfer.end.is_none()).or(record.transfers.last());
    let waited =
        last.zip(failure).filter(|(last, _)| last.end.is_none()).map(|(last, failure)| failure.at - last.start);
    vec![
        record.rank.to_string(),
        failure.map_or("none".to_owned(), |failure| failure.message.clone()),
        last.map_or("none".to_owned(), name),
        last.map_or(String::new(), |last| last.step.to_string()),
        waited.map_or(String::new(), seconds),
    ]
}

fn name(transfer: &Transfer) -> String {
    let way = if transfer.way == Way::Send { "to" } else { "from" };
    let bucket = transfer.bucket.map_or(String::new(), |bucket| format!(" of bucket {bucket}"));
    format!("{way} rank {} in {}{bucket}", transfer.peer, transfer.operation)
}

fn transfer(of: &Transfer) -> Vec<String> {
    let taken = of.end.map_or("not completed".to_owned(), |end| format!("{:.6}", end - of.start));
    vec![format!("{:.6}", of.start), format!("{}, step {}", name(of), of.step), bytes(of.bytes), taken]
}
