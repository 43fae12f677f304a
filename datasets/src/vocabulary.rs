//! Vocabulary: words and their ids.

use std::cmp::Reverse;
use std::collections::HashMap;

/// Id that pads a text to its fixed length.
pub const PADDING: i64 = 0;
/// Id of every word outside the vocabulary.
pub const UNKNOWN: i64 = 1;

/// Number of reserved ids: [`PADDING`] and [`UNKNOWN`].
const RESERVED: usize = 2;

/// Iterates over the lower-cased words of a text: the longest runs of letters and digits.
///
/// ```
/// let words: Vec<_> = briquette_datasets::words("AT&T's 2nd-quarter loss").collect();
/// assert_eq!(words, ["at", "t", "s", "2nd", "quarter", "loss"]);
/// ```
pub fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// The most frequent words of the training texts, numbered from 2 by decreasing frequency.
///
/// Words of the same frequency are in alphabetical order, so the same rows give the same ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Vocabulary {
    words: Vec<String>,
    ids: HashMap<String, u32>,
}

impl Vocabulary {
    /// Builds a vocabulary of at most `limit` words of the texts.
    pub fn build<'a>(texts: impl IntoIterator<Item = &'a str>, limit: usize) -> Self {
        let mut counts: HashMap<String, u64> = HashMap::new();
        for word in texts.into_iter().flat_map(words) {
            *counts.entry(word).or_default() += 1;
        }
        let mut ranked: Vec<(String, u64)> = counts.into_iter().collect();
        ranked.sort_unstable_by(|(a, n), (b, m)| (Reverse(n), a).cmp(&(Reverse(m), b)));
        ranked.truncate(limit);
        let words: Vec<String> = ranked.into_iter().map(|(word, _)| word).collect();
        let ids = words.iter().zip(RESERVED as u32..).map(|(word, id)| (word.clone(), id)).collect();
        Self { words, ids }
    }

    /// Returns the number of ids, padding and unknown included: the rows of an embedding.
    pub fn size(&self) -> usize {
        self.words.len() + RESERVED
    }

    /// Returns the id of a lower-case word, [`UNKNOWN`] if it has none.
    pub fn id(&self, word: &str) -> i64 {
        self.ids.get(word).map_or(UNKNOWN, |&id| i64::from(id))
    }

    /// Returns the word of an id; `None` for padding, unknown and ids beyond the vocabulary.
    pub fn word(&self, id: i64) -> Option<&str> {
        let index = usize::try_from(id).ok()?.checked_sub(RESERVED)?;
        self.words.get(index).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_words_come_first_and_ties_are_alphabetical() {
        let vocabulary = Vocabulary::build(["b a, C c", "d c: a B", "z"], 4);
        // c 3, a 2, b 2, d 1, z 1
        let words: Vec<_> = (2..6).map(|id| vocabulary.word(id).unwrap()).collect();
        assert_eq!(words, ["c", "a", "b", "d"]);
        assert_eq!((vocabulary.id("c"), vocabulary.id("z"), vocabulary.size()), (2, UNKNOWN, 6));
        for id in [-1, PADDING, UNKNOWN, 6] {
            assert_eq!(vocabulary.word(id), None);
        }
    }
}
