//! Short texts: sources, loaded data sets, batches.

use std::path::PathBuf;

use crate::download::Download;
use crate::error::DataError;
use crate::vocabulary::{PADDING, Vocabulary, words};
use crate::{ag_news, generated_text, verify};

/// Kind of text data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// AG-News: 120 000 + 7 600 news items, 4 classes.
    AgNews,
    /// Generated sentences from a small grammar with the same 4 classes; no files. 4 096 + 1 024 texts unless limits are set.
    Generated,
}

/// Text data set to load, its location, and its vocabulary settings.
#[derive(Debug, Clone, PartialEq)]
pub struct TextSource {
    /// Kind of texts.
    pub kind: TextKind,
    /// Directory with the files; `None` uses the caches.
    pub dir: Option<PathBuf>,
    /// Maximum number of training rows, taken from the beginning. For generated texts, the number to generate.
    pub train_limit: Option<usize>,
    /// Maximum number of test rows.
    pub test_limit: Option<usize>,
    /// Seed of generated texts; ignored for files.
    pub seed: u64,
    /// Maximum number of words in the vocabulary, default 20 000.
    pub vocabulary: usize,
    /// Words per text, title and description together, default 48. Longer texts are truncated, shorter ones padded.
    pub length: usize,
    /// Download settings for missing files.
    pub download: Download,
}

impl TextSource {
    /// Returns a source of all texts, from the usual places, with the default vocabulary and length, and seed 0.
    pub fn new(kind: TextKind) -> Self {
        Self {
            kind,
            dir: None,
            train_limit: None,
            test_limit: None,
            seed: 0,
            vocabulary: 20_000,
            length: 48,
            download: Download::default(),
        }
    }

    /// Finds, checks and reads the texts, or generates them; builds the vocabulary from the training rows alone.
    pub fn load(&self) -> Result<Texts, DataError> {
        verify::check_limit("train limit", self.train_limit)?;
        verify::check_limit("test limit", self.test_limit)?;
        for (setting, value) in [("vocabulary", self.vocabulary), ("text length", self.length)] {
            if value == 0 {
                return Err(DataError::setting(setting, value, "at least 1"));
            }
        }
        let rows = match self.kind {
            TextKind::AgNews => ag_news::load(self)?,
            TextKind::Generated => generated_text::generate(self)?,
        };
        let texts = rows.train.iter().map(|row| row.text.as_str());
        let vocabulary = Vocabulary::build(texts, self.vocabulary);
        Ok(Texts {
            train: TextSet::encode(&rows.train, &vocabulary, self.length),
            test: TextSet::encode(&rows.test, &vocabulary, self.length),
            vocabulary,
            classes: rows.class_names.len(),
            class_names: rows.class_names,
            notes: rows.notes,
        })
    }
}

/// One labeled text, before words have ids.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) label: u8,
    /// Title and description.
    pub(crate) text: String,
}

/// A data set before words have ids.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) train: Vec<Row>,
    pub(crate) test: Vec<Row>,
    pub(crate) class_names: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// A loaded data set of texts.
#[derive(Debug, Clone, PartialEq)]
pub struct Texts {
    /// Training texts.
    pub train: TextSet,
    /// Test texts.
    pub test: TextSet,
    /// Vocabulary of the training texts.
    pub vocabulary: Vocabulary,
    /// Number of classes; labels are smaller.
    pub classes: usize,
    /// Class names, in label order.
    pub class_names: Vec<String>,
    /// Remarks for a reader of results: subsets, files that were not checked.
    pub notes: Vec<String>,
}

/// Texts as word ids, all of one length, and labels.
#[derive(Debug, Clone, PartialEq)]
pub struct TextSet {
    tokens: Vec<u32>,
    lengths: Vec<u32>,
    labels: Vec<u8>,
    length: usize,
}

/// A batch of texts and labels for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct TextBatch {
    /// Word ids, `texts * length` values, row by row.
    pub tokens: Vec<i64>,
    /// Number of words of each text before the padding; 0 for a text without any word.
    pub lengths: Vec<usize>,
    /// Class of each text.
    pub labels: Vec<i64>,
}

impl TextSet {
    fn encode(rows: &[Row], vocabulary: &Vocabulary, length: usize) -> Self {
        let mut tokens = Vec::with_capacity(rows.len() * length);
        let mut lengths = Vec::with_capacity(rows.len());
        for (row, end) in rows.iter().zip((length..).step_by(length)) {
            let start = tokens.len();
            tokens.extend(words(&row.text).take(length).map(|word| vocabulary.id(&word) as u32));
            lengths.push((tokens.len() - start) as u32);
            tokens.resize(end, PADDING as u32);
        }
        Self { tokens, lengths, labels: rows.iter().map(|row| row.label).collect(), length }
    }

    /// Returns a fingerprint of the texts and labels.
    pub fn fingerprint(&self) -> String {
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let [tokens, labels] = [&tokens, &self.labels].map(|bytes| crc32fast::hash(bytes));
        format!("{} texts with CRC-32 {tokens:08x}, of their classes {labels:08x}", self.len())
    }

    /// Returns the number of texts.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether there are no texts.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the number of words per text, padding included.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the class of every text.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Returns the texts with these indices.
    ///
    /// # Panics
    /// If an index is not below [`TextSet::len`].
    pub fn batch(&self, indices: &[usize]) -> TextBatch {
        let tokens = indices
            .iter()
            .flat_map(|&index| &self.tokens[index * self.length..(index + 1) * self.length])
            .map(|&id| i64::from(id))
            .collect();
        TextBatch {
            tokens,
            lengths: indices.iter().map(|&index| self.lengths[index] as usize).collect(),
            labels: indices.iter().map(|&index| i64::from(self.labels[index])).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_padded_and_unknown_words_marked() {
        let rows = |texts: &[&str]| -> Vec<Row> {
            texts.iter().map(|text| Row { label: 2, text: (*text).to_owned() }).collect()
        };
        let vocabulary = Vocabulary::build(["a a a b b c"], 2);
        let set = TextSet::encode(&rows(&["B, a!", "...", "a b c a b"]), &vocabulary, 4);
        let batch = set.batch(&[2, 0, 1]);
        assert_eq!(batch.tokens, [2, 3, 1, 2, 3, 2, 0, 0, 0, 0, 0, 0]); // a 2, b 3, c unknown
        assert_eq!(batch.lengths, [4, 2, 0]);
        assert_eq!(batch.labels, [2, 2, 2]);
    }
}
