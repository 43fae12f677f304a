//! Finds the ranks that differ from most.

/// Ranks whose values are not those of most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unequal {
    /// The first rank that has what most have.
    pub rank: usize,
    /// Those that have something else.
    pub others: Vec<usize>,
}

/// The ranks that have other values than most, given what each rank has; of values that are equally frequent those of the first rank count
/// as what most have. `None` where all are equal.
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
