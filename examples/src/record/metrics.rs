//! `metrics.jsonl`: one line per step, each with a checksum, and selection of the lines that a resumed run keeps.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use briquette::core::files;

use super::StepRecord;
use crate::directory::write_whole;

/// Text before a line's checksum, which is the CRC-32 of everything before this text.
const CHECKSUM: &str = ",\"crc32\":\"";

/// Returns the line of a record.
pub(super) fn line(record: &StepRecord) -> serde_json::Result<String> {
    let mut line = serde_json::to_string(record)?;
    // The brace comes after the checksum.
    line.pop();
    let checksum = crc32fast::hash(line.as_bytes());
    // Writing to a string does not fail.
    let _ = writeln!(line, "{CHECKSUM}{checksum:08x}\"}}");
    Ok(line)
}

/// Returns the step of an intact line.
fn step(line: &[u8]) -> Option<u64> {
    let line = str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (text, checksum) = line.rsplit_once(CHECKSUM)?;
    if format!("{:08x}\"}}", crc32fast::hash(text.as_bytes())) != checksum {
        return None;
    }
    Some(serde_json::from_str::<StepRecord>(line).ok()?.step)
}

/// Lines of a file that are kept.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kept {
    /// Their positions in the file.
    lines: Vec<Range<usize>>,
    steps: BTreeSet<u64>,
    damaged: usize,
    repeated: usize,
}

/// Keeps each step before `from` once. Later ones will be written again, and half a line is left by a killed run.
fn sort(bytes: &[u8], from: u64) -> Kept {
    let (mut kept, mut begin) = (Kept::default(), 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let place = begin..begin + line.len();
        begin = place.end;
        match step(line) {
            None if line.ends_with(b"\n") => kept.damaged += 1,
            Some(step) if step < from && kept.steps.last().is_none_or(|last| *last < step) => {
                kept.steps.insert(step);
                kept.lines.push(place);
            }
            Some(step) if step < from => kept.repeated += 1,
            _ => {}
        }
    }
    kept
}

impl Kept {
    /// Returns the length of the file's unchanged beginning.
    fn head(&self) -> usize {
        let whole = self.lines.windows(2).take_while(|pair| pair[0].end == pair[1].start).count();
        self.lines.get(whole).filter(|_| self.lines[0].start == 0).map_or(0, |line| line.end)
    }

    /// Returns the losses in the record that a resumed run reports; `None` if the record is complete.
    fn losses(&self, written: Written) -> Option<String> {
        let lost = match written {
            Written::EachStepBefore(from) => {
                let missing: Vec<u64> = (0..from).filter(|step| !self.steps.contains(step)).collect();
                let text =
                    || format!("{} of {from} steps have no record any more: {}", missing.len(), ranges(&missing));
                (!missing.is_empty()).then(text)
            }
            Written::Pauses { count, .. } => {
                let missing = count.saturating_sub(self.lines.len() as u64);
                (missing > 0).then(|| format!("{missing} of {count} pauses have no record any more"))
            }
        };
        let dropped =
            [(self.damaged, "damaged"), (self.repeated, "repeated")].into_iter().filter(|(lines, _)| *lines > 0);
        let dropped: Vec<String> = dropped.map(|(lines, what)| format!("{lines} {what}")).collect();
        let dropped = (!dropped.is_empty()).then(|| format!("lines were dropped: {}", dropped.join(" and ")));
        // A damaged line of a step that is repeated is no loss.
        (lost.is_some() || self.repeated > 0).then(|| dropped.into_iter().chain(lost).collect::<Vec<_>>().join("; "))
    }
}

/// Records that a resumed run has already written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// One record of each step before this one.
    EachStepBefore(u64),
    /// One record of each pause of a server, `count` in all, of steps before `before`.
    Pauses {
        /// Number of records.
        count: u64,
        /// First step of the resumed run.
        before: u64,
    },
}

impl Written {
    fn before(self) -> u64 {
        match self {
            Written::EachStepBefore(step) | Written::Pauses { before: step, .. } => step,
        }
    }
}

/// Formats steps as ranges: `0–3, 7`.
fn ranges(steps: &[u64]) -> String {
    let runs = steps.chunk_by(|a, b| a + 1 == *b);
    let shown = runs.map(|run| match run {
        [first, .., last] => format!("{first}–{last}"),
        single => single.iter().map(u64::to_string).collect(),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Opens the file positioned after the records that the run made before it is resumed; losses are reported. Kept lines
/// are rewritten only if lines before them are dropped. They are then written to a new file, which replaces the old one
/// once it is complete. `own` are this rank's records of the last steps, in place of those that were not written.
pub(crate) fn keep_before(path: &Path, written: Written, own: &[StepRecord]) -> io::Result<File> {
    let (bytes, what) = match files::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => (Vec::new(), "was missing".to_owned()),
        Err(error) if files::is_irregular(&error) => {
            (Vec::new(), format!("was damaged ({error}; now {})", files::set_aside(path)?.display()))
        }
        read => (read?, "is not as it was written".to_owned()),
    };
    let mut kept = sort(&bytes, written.before());
    let last = kept.steps.last().copied();
    let added: Vec<&StepRecord> =
        own.iter().filter(|own| own.step < written.before() && last.is_none_or(|last| last < own.step)).collect();
    kept.steps.extend(added.iter().map(|record| record.step));
    if let Some(losses) = kept.losses(written) {
        tracing::warn!("{} {what}: {losses}", path.display());
    }
    let mut end = kept.head();
    if kept.lines.last().is_some_and(|last| last.end > end) {
        let whole: Vec<u8> = kept.lines.iter().flat_map(|line| &bytes[line.clone()]).copied().collect();
        write_whole(path, &whole)?;
        end = whole.len();
    }
    let mut file = files::open_or_create(path)?;
    file.set_len(end as u64)?;
    file.seek(SeekFrom::Start(end as u64))?;
    added.into_iter().try_for_each(|record| append(&mut file, record))?;
    Ok(file)
}

/// Appends a record, as a run does to `metrics.jsonl`.
///
/// # Errors
/// If the file cannot be written.
pub fn append(file: &mut File, record: &StepRecord) -> io::Result<()> {
    file.write_all(line(record)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Written::EachStepBefore;
    use super::*;

    fn record(step: u64) -> StepRecord {
        let text = format!(
            r#"{{"step": {step}, "epoch": 0, "loss": 0.5, "lr": 0.1, "ratio": null, "wire_ratio": 20.5, "gain": null,
                "bytes_sent": 10, "bytes_received": 10, "compute_seconds": 0, "compress_seconds": 0, "exchange_seconds": 0}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn file(steps: &[u64]) -> Vec<u8> {
        steps.iter().flat_map(|step| line(&record(*step)).unwrap().into_bytes()).collect()
    }

    #[test]
    fn every_flipped_bit_costs_at_most_the_lines_it_is_in() {
        let whole = file(&[0, 1, 2, 3]);
        let len = whole.len() / 4;
        // In the second line, its end included: without that two lines are one.
        for bit in 8 * len..16 * len {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let kept = sort(&bytes, 4);
            let steps: Vec<u64> = kept.steps.iter().copied().collect();
            let lost = if bit / 8 == 2 * len - 1 { vec![1, 2] } else { vec![1] };
            let expected: Vec<u64> = (0..4).filter(|step| !lost.contains(step)).collect();
            assert_eq!(steps, expected, "bit {bit}");
            for place in &kept.lines {
                let line = &bytes[place.clone()];
                assert!(whole.windows(line.len()).any(|window| window == line), "bit {bit}");
            }
        }
    }

    #[test]
    fn what_is_lost_is_reported_with_its_steps() {
        let mut bytes = file(&[0, 1, 2, 2, 3, 4, 8]);
        assert_eq!(sort(&file(&[0, 1, 2]), 3).losses(EachStepBefore(3)), None);
        let len = bytes.len() / 7;
        bytes[len + 20] ^= 1;
        bytes.extend_from_slice(b"{\"step\": 9, \"ep");
        let kept = sort(&bytes, 8);
        assert_eq!(kept.steps.iter().copied().collect::<Vec<_>>(), [0, 2, 3, 4]);
        let said = kept.losses(EachStepBefore(8)).unwrap();
        let expected = "lines were dropped: 1 damaged and 1 repeated; 4 of 8 steps have no record any more: 1, 5–7";
        assert_eq!(said, expected);
        let said = sort(&[], 3).losses(EachStepBefore(3)).unwrap();
        assert_eq!(said, "3 of 3 steps have no record any more: 0–2");
    }

    /// Records of a server's run describe its pauses: steps in between have no record, so nothing is lost.
    #[test]
    fn of_a_servers_run_only_pauses_that_are_lost_are_reported() {
        let pauses = |count| Written::Pauses { count, before: 30 };
        let mut bytes = file(&[9, 19, 29]);
        assert_eq!(sort(&bytes, 30).losses(pauses(3)), None);
        // Its last step is repeated.
        assert_eq!(sort(&file(&[9, 19, 29, 39]), 30).losses(pauses(3)), None);
        assert_eq!(sort(&[], 30).losses(pauses(3)).unwrap(), "3 of 3 pauses have no record any more");
        bytes[5] ^= 1;
        let said = sort(&bytes, 30).losses(pauses(3)).unwrap();
        assert_eq!(said, "lines were dropped: 1 damaged; 1 of 3 pauses have no record any more");
    }

    /// The lost rank 0 wrote steps 0 and 1, and half of step 2. Its successor has steps 1 to 4, and continues at step 4.
    #[test]
    fn a_successors_own_records_follow_those_that_were_written() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("metrics.jsonl");
        fs::write(&path, [&file(&[0, 1])[..], b"{\"step\":2,\"ep"].concat()).unwrap();
        let own = [1, 2, 3, 4].map(record);
        append(&mut keep_before(&path, EachStepBefore(4), &own).unwrap(), &record(4)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), file(&[0, 1, 2, 3, 4]));
    }

    #[test]
    fn half_a_line_and_lines_without_a_checksum_are_cut_off() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let bare = serde_json::to_string(&record(2)).unwrap() + "\n{\"step\":3,\"ep";
        fs::write(&path, [&file(&[0, 1])[..], bare.as_bytes()].concat()).unwrap();
        append(&mut keep_before(&path, EachStepBefore(3), &[]).unwrap(), &record(3)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), file(&[0, 1, 3]));
    }

    #[test]
    fn a_hole_is_closed_in_a_new_file_and_a_missing_file_begins_anew() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let mut bytes = file(&[0, 1, 2, 3]);
        bytes[5] ^= 4;
        fs::write(&path, &bytes).unwrap();
        append(&mut keep_before(&path, EachStepBefore(3), &[]).unwrap(), &record(3)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), file(&[1, 2, 3]));
        fs::remove_file(&path).unwrap();
        append(&mut keep_before(&path, EachStepBefore(7), &[]).unwrap(), &record(7)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), file(&[7]));
    }
}
