//! Claims of the strategies' sources, tested on problems with known answers: rows of one table, and whether the claim
//! holds in them.

mod comp_ams;
mod data;
mod gossip;
mod growth;
mod leaders;
mod local;
mod momentum;
mod optimizers;
mod robust;
mod server;
mod smoothness;
mod texts;
mod two_way;
mod workers;
mod world;

use std::path::Path;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::picture::{Curve, Panel};

/// One value for one seed.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Family of strategies.
    pub family: Family,
    /// Short name of the claim.
    pub claim: &'static str,
    /// Setting that was run.
    pub setting: String,
    /// Meaning of `x`.
    pub over: &'static str,
    /// Value of `x` for this run.
    pub x: f64,
    /// Seed of noise and starts.
    pub seed: u64,
    /// Meaning of `value`.
    pub quantity: &'static str,
    /// Learning rate with the lowest `value`, if several were tried.
    pub rate: Option<f64>,
    /// Result.
    pub value: f64,
}

/// Strategies of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Averages in turns: Local SGD and what is around it
    Local,
    /// Ranks whose data differ: minibatches beside local steps
    Data,
    /// Messages to neighbours: SGP
    Gossip,
    /// Ranks of their own, pulled to a centre or a leader: EASGD, LSGD, Parle
    Leaders,
    /// No lock step: a server and workers
    Server,
    /// Bytes and time as the world grows
    Growth,
    /// Compressed both ways: votes, DoubleSqueeze, NEOLITHIC, MCM; and sampled by smoothness
    TwoWay,
    /// Aggregators against Byzantine ranks
    Robust,
    /// Optimizers and step sizes
    Optimizers,
}

impl Family {
    /// Returns the name of its files.
    pub fn name(self) -> &'static str {
        match self {
            Family::Local => "local",
            Family::Data => "data",
            Family::Gossip => "gossip",
            Family::Leaders => "leaders",
            Family::Server => "server",
            Family::Growth => "growth",
            Family::TwoWay => "two-way",
            Family::Robust => "robust",
            Family::Optimizers => "optimizers",
        }
    }

    /// Returns its claims, in the order of the table.
    pub fn claims(self) -> &'static [Claim] {
        match self {
            Family::Local => local::CLAIMS,
            Family::Data => data::CLAIMS,
            Family::Gossip => gossip::CLAIMS,
            Family::Leaders => leaders::CLAIMS,
            Family::Server => server::CLAIMS,
            Family::Growth => growth::CLAIMS,
            Family::TwoWay => two_way::CLAIMS,
            Family::Robust => robust::CLAIMS,
            Family::Optimizers => optimizers::CLAIMS,
        }
    }
}

/// A claim, its experiment and its criterion.
#[derive(Debug)]
pub struct Claim {
    /// Short name.
    pub name: &'static str,
    /// Statement of the source.
    pub says: &'static str,
    /// Experiment: returns rows for this many seeds, on the data of a directory if one is given.
    pub run: fn(u64, Option<&Path>) -> Result<Vec<Row>>,
    /// Criterion: returns whether the claim holds in the rows, and a summary.
    pub judge: fn(&[Row]) -> (bool, String),
    /// Set if its picture has logarithmic axes.
    pub log: bool,
}

/// Returns the panels of a family's claims that have rows.
pub fn panels<'a>(claims: &'a [Claim], rows: &[Row]) -> Vec<Panel<'a>> {
    let panel = |claim: &'a Claim| {
        let rows: Vec<Row> = rows.iter().filter(|row| row.claim == claim.name).cloned().collect();
        let first = rows.first()?;
        let axes = [first.over, first.quantity];
        Some(Panel { caption: claim.name, axes, log: [claim.log; 2], curves: means(&rows) })
    };
    claims.iter().filter_map(panel).collect()
}

/// Returns means over seeds: each setting's values at each `x`, in the order in which they occur.
pub fn means(rows: &[Row]) -> Vec<Curve<f64>> {
    let mut all: Vec<Curve<Vec<f64>>> = Vec::new();
    for row in rows {
        let at = all.iter().position(|(setting, _)| *setting == row.setting).unwrap_or_else(|| {
            all.push((row.setting.clone(), Vec::new()));
            all.len() - 1
        });
        let points = &mut all[at].1;
        match points.iter_mut().find(|(x, _)| *x == row.x) {
            Some((_, values)) => values.push(row.value),
            None => points.push((row.x, vec![row.value])),
        }
    }
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    all.into_iter().map(|(s, points)| (s, points.into_iter().map(|(x, v)| (x, mean(v))).collect())).collect()
}

/// Returns the mean of a setting at an `x`; NaN if it was not run.
pub fn mean(rows: &[Row], setting: &str, x: f64) -> f64 {
    let points = means(rows).into_iter().find(|(own, _)| own == setting).map(|(_, points)| points);
    points.and_then(|points| points.into_iter().find(|(own, _)| *own == x)).map_or(f64::NAN, |(_, value)| value)
}

/// Returns the learning rate with the lowest value, and that value. Rates are searched by factors of two, until the
/// value is higher at both neighbors of the result. A failed run means that the rate is too high.
fn lowest(start: f64, mut value: impl FnMut(f64) -> Result<f64>) -> Result<(f64, f64)> {
    let mut at = |rate: f64| match value(rate) {
        Ok(own) if own.is_finite() => Ok((rate, own)),
        Err(error) if !error.is::<world::Failed>() => Err(error),
        _ => Ok((rate, f64::INFINITY)),
    };
    let mut best = at(start)?;
    for _ in 0..20 {
        if best.1.is_finite() {
            break;
        }
        best = at(best.0 / 2.0)?;
    }
    ensure!(best.1.is_finite(), "no rate from {start} down to {} gives a finite value", best.0);
    for factor in [2.0, 0.5] {
        let begun = best.0;
        loop {
            let next = at(best.0 * factor)?;
            if next.1 >= best.1 {
                break;
            }
            best = next;
        }
        // A rate beyond one that was left for a better one is known to be worse.
        if best.0 != begun {
            break;
        }
    }
    Ok(best)
}

/// Returns the slope of `log value` over `log x`, by least squares.
pub fn slope(rows: &[Row], setting: &str) -> f64 {
    let points = means(rows).into_iter().find(|(own, _)| own == setting).map(|(_, points)| points).unwrap_or_default();
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let of = |f: fn(&(f64, f64)) -> f64| logs.iter().map(f).sum::<f64>() / logs.len() as f64;
    let (x, y) = (of(|p| p.0), of(|p| p.1));
    let [xy, xx] = [1, 0].map(|both| {
        let terms = logs.iter().map(|p| (p.0 - x) * if both == 1 { p.1 - y } else { p.0 - x });
        terms.sum::<f64>()
    });
    xy / xx
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(setting: &str, x: f64, value: f64) -> Row {
        let (family, claim, over, quantity) = (Family::Local, "c", "x", "y");
        Row { family, claim, setting: setting.into(), over, x, seed: 1, quantity, rate: None, value }
    }

    #[test]
    fn means_and_slopes_by_hand() {
        let rows =
            [row("a", 1.0, 2.0), row("a", 1.0, 4.0), row("b", 1.0, 9.0), row("a", 2.0, 12.0), row("a", 4.0, 48.0)];
        assert_eq!(means(&rows)[0], ("a".into(), vec![(1.0, 3.0), (2.0, 12.0), (4.0, 48.0)]));
        assert!((slope(&rows, "a") - 2.0).abs() < 1e-12);
        assert!(mean(&rows, "b", 1.0) == 9.0 && mean(&rows, "b", 2.0).is_nan());
    }

    #[test]
    fn the_best_rate_is_between_two_worse_ones() {
        for peak in [0.01, 0.1, 0.8] {
            let (rate, value) = lowest(0.1, |rate| Ok((rate / peak).ln().abs())).unwrap();
            assert!(value <= 2.0_f64.ln() / 2.0, "{rate} for {peak}");
        }
        let (rate, value) = lowest(1.0, |rate| Ok(if rate > 0.2 { f64::NAN } else { -rate })).unwrap();
        assert_eq!((rate, value), (0.125, -0.125));
        assert!(lowest(1.0, |_| Ok(f64::NAN)).is_err() && lowest(1.0, |_| Err(anyhow::anyhow!("no data"))).is_err());
    }

    /// Covers the claims that take seconds; the table covers the others.
    #[test]
    fn claims_that_are_quickly_tried_hold() {
        briquette::zoo::install();
        let quick = [
            (Family::Local, "bias"),
            (Family::Gossip, "mean"),
            (Family::Server, "picky"),
            (Family::Server, "asynchronous leader"),
            (Family::Optimizers, "counter-example"),
            (Family::Optimizers, "last iterate"),
            (Family::TwoWay, "preserved model"),
        ];
        for (family, name) in quick {
            let claim = family.claims().iter().find(|claim| claim.name == name).unwrap();
            let (holds, seen) = (claim.judge)(&(claim.run)(1, None).unwrap());
            assert!(holds, "{name}: {seen}");
        }
    }
}
