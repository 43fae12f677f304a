//! Majority comparison: finds the ranks whose values differ from the majority.

/// Ranks whose values differ from the most frequent value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unequal {
    /// The first rank that has the most frequent value.
    pub rank: usize,
    /// Ranks that have another value.
    pub others: Vec<usize>,
}

/// Returns the ranks whose values differ from the most frequent value, given each rank's value. Among equally frequent values,
/// that of the first rank counts as the most frequent. `None` if all are equal.
///
/// ```
/// use briquette_core::sync::{Unequal, unequal};
///
/// assert_eq!(unequal(&[7, 7, 7]), None);
/// assert_eq!(unequal(&[1, 7, 7]), Some(Unequal { rank: 1, others: vec![0] }));
/// assert_eq!(unequal(&[1, 7]), Some(Unequal { rank: 0, others: vec![1] }));
/// ```
pub fn unequal<T: PartialEq>(values: &[T]) -> Option<Unequal> {
    let as_often = |value: &T| values.iter().filter(|other| *other == value).count();
    let most = values.iter().map(as_often).max().filter(|most| *most < values.len())?;
    let rank = values.iter().position(|value| as_often(value) == most)?;
    let others = (0..values.len()).filter(|other| values[*other] != values[rank]).collect();
    Some(Unequal { rank, others })
}
