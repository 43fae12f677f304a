//! Characters of texts, for language models.

use crate::error::DataError;
use crate::text::{Row, TextKind, TextSource};
use crate::{ag_news, generated_text, verify};

/// Number of codes: unknown characters (0), the printable ones of ASCII (1 to 95), and the end of a text (96).
pub const CHARACTERS: usize = 97;

/// The code of the end of a text.
const END: u8 = 96;

/// A data set of characters.
#[derive(Debug, Clone, PartialEq)]
pub struct Chars {
    /// Training windows.
    pub train: CharSet,
    /// Test windows.
    pub test: CharSet,
    /// Remarks for a reader of results.
    pub notes: Vec<String>,
}

/// Windows of a stream of characters. A window has one character more than its inputs: each input's target is the next one.
#[derive(Debug, Clone, PartialEq)]
pub struct CharSet {
    codes: Vec<u8>,
    /// Class of the text in which each window begins.
    labels: Vec<u8>,
    length: usize,
}

/// A batch of windows for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct CharBatch {
    /// Codes, `windows * length` values, row by row.
    pub inputs: Vec<i64>,
    /// The code after each input.
    pub targets: Vec<i64>,
}

impl TextSource {
    /// Finds, checks and reads the texts, or generates them, as characters: the texts one after the other, in windows of `length` characters. What
    /// does not fill a window is left out. Ignores the vocabulary and the length of the source.
    ///
    /// ```
    /// use briquette_datasets::{TextKind, TextSource};
    ///
    /// let chars = TextSource::new(TextKind::Generated).load_chars(32)?;
    /// let batch = chars.train.batch(&[0, 1]);
    /// assert_eq!((batch.inputs.len(), batch.targets[..31].to_vec()), (64, batch.inputs[1..32].to_vec()));
    /// # Ok::<_, briquette_datasets::DataError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`load`](Self::load), a length of 0, and texts of fewer characters than a window.
    pub fn load_chars(&self, length: usize) -> Result<Chars, DataError> {
        verify::check_limit("train limit", self.train_limit)?;
        verify::check_limit("test limit", self.test_limit)?;
        if length == 0 {
            return Err(DataError::setting("window length", length, "at least 1"));
        }
        let rows = match self.kind {
            TextKind::AgNews => ag_news::load(self)?,
            TextKind::Generated => generated_text::generate(self)?,
        };
        let [train, test] = [&rows.train, &rows.test].map(|rows| CharSet::encode(rows, length));
        if train.is_empty() || test.is_empty() {
            return Err(DataError::setting("window length", length, "at most the characters of the texts"));
        }
        Ok(Chars { train, test, notes: rows.notes })
    }
}

/// Returns the code of a character.
fn code(character: char) -> u8 {
    match character {
        ' '..='~' => character as u8 - b' ' + 1,
        _ => 0,
    }
}

impl CharSet {
    fn encode(rows: &[Row], length: usize) -> CharSet {
        let (mut codes, mut classes) = (Vec::new(), Vec::new());
        for row in rows {
            codes.extend(row.text.chars().map(code));
            codes.push(END);
            classes.resize(codes.len(), row.label);
        }
        let labels = (0..codes.len()).step_by(length).take_while(|start| start + length < codes.len());
        CharSet { labels: labels.map(|start| classes[start]).collect(), codes, length }
    }

    /// Returns a fingerprint of the characters.
    pub fn fingerprint(&self) -> String {
        format!("{} windows of {} characters with CRC-32 {:08x}", self.len(), self.length, crc32fast::hash(&self.codes))
    }

    /// Returns the number of windows.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether there are no windows.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the number of inputs of a window.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the class of the text in which each window begins.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Returns the windows with these indices.
    ///
    /// # Panics
    /// If an index is not below [`CharSet::len`].
    pub fn batch(&self, indices: &[usize]) -> CharBatch {
        let codes = |shift: usize| {
            let window = |index: &usize| &self.codes[index * self.length + shift..][..self.length];
            indices.iter().flat_map(window).map(|code| i64::from(*code)).collect()
        };
        CharBatch { inputs: codes(0), targets: codes(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "ab" and "é~" with their ends: six codes, two windows of two inputs; the last code is only a target.
    #[test]
    fn windows_by_hand() {
        let rows = [("ab", 3), ("é~", 1)].map(|(text, label)| Row { label, text: text.to_owned() });
        let set = CharSet::encode(&rows, 2);
        assert_eq!((set.codes.clone(), set.labels().to_vec()), (vec![66, 67, 96, 0, 95, 96], vec![3, 3]));
        let batch = set.batch(&[1, 0]);
        assert_eq!((batch.inputs, batch.targets), (vec![96, 0, 66, 67], vec![0, 95, 67, 96]));
        assert!(CHARACTERS as u8 == END + 1 && code('~') < END);
    }

    #[test]
    fn a_window_longer_than_the_texts_is_refused() {
        let source = TextSource { train_limit: Some(2), test_limit: Some(2), ..TextSource::new(TextKind::Generated) };
        let error = source.load_chars(1_000_000).unwrap_err().to_string();
        assert!(error.contains("window length"), "{error}");
        assert!(source.load_chars(0).is_err());
    }
}
