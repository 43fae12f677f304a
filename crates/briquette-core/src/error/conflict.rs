//! Conflict: two settings, or a setting and a property of the run, that cannot be combined.

/// Two settings that cannot be combined, with the reason and a remedy.
///
/// ```
/// # briquette_zoo::install();
/// use briquette_core::{Layout, config::Config, error::ConfigError};
/// let config: Config = "strategy=easgd feedback=error".parse()?;
/// let Err(ConfigError::Conflict(conflict)) = config.build(&Layout::flat(1000), 4).map(drop) else { panic!("it is refused") };
/// assert_eq!((&*conflict.left, &*conflict.right), ("strategy easgd", "feedback error"));
/// assert_eq!(conflict.instead, "leave feedback out");
/// # Ok::<(), ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{left} does not go with {right}: {why}; {instead}")]
#[non_exhaustive]
pub struct Conflict {
    /// One of the two settings, with its kind: `strategy local-sgd:8`.
    pub left: String,
    /// The other setting, or a property of the run: `a world of 2 ranks`.
    pub right: String,
    /// The reason, as a clause.
    pub why: String,
    /// The remedy, as an instruction.
    pub instead: String,
}

impl Conflict {
    /// Creates the conflict between `left` and `right`.
    pub fn new(
        left: impl Into<String>,
        right: impl Into<String>,
        why: impl Into<String>,
        instead: impl Into<String>,
    ) -> Self {
        Conflict { left: left.into(), right: right.into(), why: why.into(), instead: instead.into() }
    }
}

/// Returns the name of a world for a conflict: `a world of 2 ranks`.
pub fn world_of(ranks: usize) -> String {
    format!("a world of {ranks} rank{}", if ranks == 1 { "" } else { "s" })
}
