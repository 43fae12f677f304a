//! Identity of a run: the settings that ranks compare at join, and that loading compares with a checkpoint.

use std::str::FromStr;

use briquette_core::config::{CompressorConfig, ReducerConfig};
use briquette_core::{Layout, Session};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::flat::Inventory;
use crate::probe::Probe;

/// Names and values, in a fixed order. Values are texts, so that errors can show them.
pub(crate) type Settings = Vec<(String, String)>;

/// Fields whose errors name the first tensor that differs.
const LAYOUTS: [&str; 2] = ["layout", "buffers"];
/// Keys of a configuration that do not affect results and may therefore differ.
const MAY_DIFFER: [&str; 2] = ["threads", "device"];
/// Keys that hold the kind of an object. If they differ, no other key of the object is reported.
const KINDS: [&str; 2] = ["strategy", "kind"];

/// Settings of the training loop, grouped by the scope of the comparison.
#[derive(Debug, Clone, Default)]
pub(crate) struct Compared {
    /// Compared at join, and with a checkpoint.
    pub(crate) run: Settings,
    /// Compared at join, and with a checkpoint of a world of the same size.
    pub(crate) size: Settings,
    /// Compared at join.
    pub(crate) part: Settings,
}

/// Properties that ranks of a run compare.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Settings for all parts of the run: a checkpoint is compared with them.
    pub(crate) run: Settings,
    /// Settings for all parts with a world of the same size.
    #[serde(default)]
    pub(crate) size: Settings,
    /// Settings for this part of the run.
    pub(crate) part: Settings,
    /// The rounding of this rank's devices. Ranks may differ in it.
    pub(crate) rounding: String,
    /// The probe of the optimizer, if it is accessible.
    pub(crate) optimizer: Option<Probe>,
}

/// A field that differs, and both values.
#[derive(Debug, PartialEq)]
pub(crate) struct Difference {
    pub(crate) field: String,
    pub(crate) ours: String,
    pub(crate) theirs: String,
}

/// The settings that the library itself compares.
pub(crate) fn settings(inventory: &Inventory, config: String, seed: u64, local_weight_decay: f64) -> Settings {
    let layout = |layout: &Layout| format!("{layout} ({:016x})", layout.fingerprint());
    let fields = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        (CONFIGURATION, config),
        ("seed", seed.to_string()),
        ("local weight decay", local_weight_decay.to_string()),
        (LAYOUTS[0], layout(&inventory.layout)),
        (LAYOUTS[1], layout(&inventory.rest)),
    ];
    fields.map(|(field, value)| (field.to_owned(), value)).to_vec()
}

impl Identity {
    /// Returns the first difference between two ranks. `slots` names parameters.
    fn difference(&self, other: &Identity, slots: &Layout) -> Option<Difference> {
        let settings = |identity: &Identity| [&identity.run[..], &identity.size[..], &identity.part[..]].concat();
        let optimizers = || difference_of_optimizers(self, other, slots);
        differences(&settings(self), &settings(other)).next().or_else(optimizers)
    }

    /// Returns the first difference between this run and the saved settings of a file, from a world of the same size or of
    /// another.
    pub(crate) fn difference_to_saved(
        &self,
        saved: &std::collections::HashMap<String, String>,
        slots: &Layout,
        same_world: bool,
    ) -> Option<Difference> {
        let size = |field: &str| self.size.iter().any(|(name, _)| name == field);
        let is_compared = |field: &str| !FILE.contains(&field) && (same_world || !size(field));
        let theirs: Settings = saved.clone().into_iter().filter(|(field, _)| is_compared(field)).collect();
        let mut ours = self.run.clone();
        ours.extend(self.size.iter().filter(|_| same_world).cloned());
        let probe = saved.get(OPTIMIZER).and_then(|text| serde_json::from_str(text).ok());
        let rounding = saved.get(ROUNDING).cloned().unwrap_or_default();
        let saved = Identity { run: theirs, optimizer: probe, rounding, ..Identity::default() };
        differences(&ours, &saved.run).next().or_else(|| difference_of_optimizers(self, &saved, slots))
    }

    /// The entries to save in a file.
    pub(crate) fn to_save(&self) -> impl Iterator<Item = (String, String)> {
        let optimizer = self.optimizer.as_ref().and_then(|probe| serde_json::to_string(probe).ok());
        let optimizer = optimizer.map(|text| (OPTIMIZER.to_owned(), text));
        self.run
            .iter()
            .chain(&self.size)
            .cloned()
            .chain([(ROUNDING.to_owned(), self.rounding.clone())])
            .chain(optimizer)
    }
}

/// Entries of a file that are not settings.
pub(crate) const FILE: [&str; 4] = [RANK, WORLD, ROUNDING, OPTIMIZER];
pub(crate) const RANK: &str = "rank";
pub(crate) const WORLD: &str = "world";
const CONFIGURATION: &str = "configuration";
const ROUNDING: &str = "rounding";
const OPTIMIZER: &str = "optimizer";

/// Returns the differences in the order of `ours`, followed by the fields that only `theirs` has.
fn differences(ours: &[(String, String)], theirs: &[(String, String)]) -> impl Iterator<Item = Difference> + use<> {
    let fields = ours.iter().map(|(field, _)| field).chain(theirs.iter().map(|(field, _)| field)).cloned();
    let pairs: Vec<_> = fields.map(|field| (find(ours, &field), find(theirs, &field), field)).collect();
    pairs.into_iter().filter_map(|(ours, theirs, field)| compare_text(field, ours, theirs))
}

/// Compares two texts; for JSON objects, returns the first entry that differs.
fn compare_text(field: String, ours: Option<String>, theirs: Option<String>) -> Option<Difference> {
    if ours == theirs {
        return None;
    }
    let object = |text: &Option<String>| serde_json::from_str(text.as_deref()?).ok().filter(Value::is_object);
    match (object(&ours), object(&theirs)) {
        (Some(ours), Some(theirs)) => compare_json(field, Some(&ours), Some(&theirs)),
        _ => {
            let text = |text: Option<String>| text.unwrap_or_else(|| ABSENT.to_owned());
            Some(Difference { field, ours: text(ours), theirs: text(theirs) })
        }
    }
}

const ABSENT: &str = "absent";

fn compare_json(field: String, ours: Option<&Value>, theirs: Option<&Value>) -> Option<Difference> {
    if let (Some(Value::Object(a)), Some(Value::Object(b))) = (ours, theirs) {
        let keys = KINDS.into_iter().chain(a.keys().chain(b.keys()).map(String::as_str));
        let mut keys = keys.filter(|key| !MAY_DIFFER.contains(key));
        return keys.find_map(|key| compare_json(format!("{field}.{key}"), a.get(key), b.get(key)));
    }
    if let (Some(Value::Array(a)), Some(Value::Array(b))) = (ours, theirs)
        && a.len() == b.len()
    {
        let mut pairs = a.iter().zip(b).enumerate();
        return pairs.find_map(|(at, (a, b))| compare_json(format!("{field}[{at}]"), Some(a), Some(b)));
    }
    let text = |value: Option<&Value>| match value {
        None => ABSENT.to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let (mine, other) = (text(ours), text(theirs));
    (ours != theirs && !is_same(&mine, &other)).then_some(Difference { field, ours: mine, theirs: other })
}

/// Returns whether two texts, compared word by word, are the same settings. A checkpoint's text may state defaults that are now
/// omitted. Texts of algorithms of other crates can be compared in this way only if their catalogue is installed.
fn is_same(ours: &str, theirs: &str) -> bool {
    fn equal<T: FromStr + PartialEq>(ours: &str, theirs: &str) -> bool {
        ours.parse::<T>().is_ok_and(|ours| theirs.parse().is_ok_and(|theirs: T| ours == theirs))
    }
    let same = |(a, b): (&str, &str)| a == b || equal::<ReducerConfig>(a, b) || equal::<CompressorConfig>(a, b);
    let (ours, theirs) = (ours.split(' '), theirs.split(' '));
    ours.clone().count() == theirs.clone().count() && ours.zip(theirs).all(same)
}

fn difference_of_optimizers(ours: &Identity, theirs: &Identity, slots: &Layout) -> Option<Difference> {
    let alike = ours.rounding == theirs.rounding;
    let (slot, mine, other) = ours.optimizer.as_ref()?.difference(theirs.optimizer.as_ref()?, alike)?;
    let path = slots.slots().get(slot).map_or("a parameter", |slot| slot.path());
    let field = format!("optimizer (its kind and settings, by what it makes of test gradients of `{path}`)");
    Some(Difference { field, ours: mine.to_string(), theirs: other.to_string() })
}

/// Compares all ranks. Returns an error on every rank that differs from another one. Otherwise returns whether the world is
/// mixed, so that its devices may round differently.
pub(crate) fn compare(comm: &mut Session, mine: &Identity, inventory: &Inventory) -> Result<bool, Error> {
    let slots = &inventory.layout;
    comm.scope().operation = "join";
    let (this, mut mixed) = (comm.rank(), false);
    let text = serde_json::to_vec(mine).unwrap_or_default();
    let mut frames = Vec::new();
    comm.all_gather(&text, &mut frames)?;
    // Another version may use another format.
    let read = |frame: &[u8]| serde_json::from_slice::<Identity>(frame).unwrap_or_default();
    let others: Vec<_> = frames.iter().map(|frame| read(frame)).enumerate().filter(|(rank, _)| *rank != this).collect();
    let layouts = |identity: &Identity| LAYOUTS.map(|name| find(&identity.run, name));
    // Every rank gets the same result of this comparison, so all take part in the next exchange.
    if others.iter().any(|(_, theirs)| layouts(theirs) != layouts(mine)) {
        let text = serde_json::to_vec(&tensors(inventory)).unwrap_or_default();
        comm.all_gather(&text, &mut frames)?;
    }
    for (rank, theirs) in others {
        if let Some(mut difference) = mine.difference(&theirs, slots) {
            if LAYOUTS.contains(&difference.field.as_str()) {
                let theirs = serde_json::from_slice::<Tensors>(&frames[rank]).unwrap_or_default();
                difference = first_tensor(&tensors(inventory), &theirs).unwrap_or(difference);
            }
            let Difference { field, ours, theirs } = difference;
            return Err(Error::Mismatch { this, rank, field, ours, theirs });
        }
        mixed |= theirs.rounding != mine.rounding;
    }
    Ok(mixed)
}

/// Paths and shapes, trainable tensors first.
type Tensors = [Vec<(String, Vec<usize>)>; 2];

fn tensors(inventory: &Inventory) -> Tensors {
    let of =
        |layout: &Layout| layout.slots().iter().map(|slot| (slot.path().to_owned(), slot.shape().to_vec())).collect();
    [of(&inventory.layout), of(&inventory.rest)]
}

/// Returns the first tensor that differs between two modules.
fn first_tensor(ours: &Tensors, theirs: &Tensors) -> Option<Difference> {
    let text = |tensor: Option<&(String, Vec<usize>)>| match tensor {
        Some((path, shape)) => format!("`{path}` of shape {shape:?}"),
        None => ABSENT.to_owned(),
    };
    let differ = |what: &str, ours: &[_], theirs: &[_]| {
        let place = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
        let field = format!("{what} {place}, the first that differs,");
        Some(Difference { field, ours: text(ours.get(place)), theirs: text(theirs.get(place)) })
    };
    let kinds = ["trainable tensor", "buffer or frozen tensor"];
    kinds.iter().zip(ours.iter().zip(theirs)).find_map(|(what, (ours, theirs))| differ(what, ours, theirs))
}

fn find(settings: &[(String, String)], field: &str) -> Option<String> {
    settings.iter().find(|(name, _)| name == field).map(|(_, value)| value.clone())
}

#[cfg(test)]
mod tests {
    use briquette_core::comm::Local;

    use super::*;

    #[test]
    fn one_rank_that_rounds_differently_makes_the_world_mixed_for_all() {
        let mixed = |texts: [&'static str; 3]| {
            let told = Local::run(3, |mut comm| {
                let run = vec![("seed".to_owned(), "7".to_owned())];
                let mine = Identity { run, rounding: texts[comm.rank()].to_owned(), ..Identity::default() };
                compare(&mut comm, &mine, &Inventory::default())
            });
            told.into_iter().collect::<Result<Vec<bool>, Error>>().unwrap()
        };
        assert_eq!(mixed(["a", "a", "a"]), [false; 3]);
        assert_eq!(mixed(["a", "a", "b"]), [true; 3]);
        assert_eq!(mixed(["b", "a", "a"]), [true; 3]);
    }

    #[test]
    fn the_entry_that_differs_is_named_and_what_only_one_side_has_differs() {
        let pair = |field: &str, value: &str| (field.to_owned(), value.to_owned());
        let first = |ours: &[(String, String)], theirs: &[(String, String)]| {
            let found = differences(ours, theirs).next();
            found.map(|d| format!("{}: {} here, {} there", d.field, d.ours, d.theirs))
        };
        let ours =
            pair("c", r#"{"strategy":"every-step","threads":1,"reducer":{"kind":"gather","compressor":"qsgd:4"}}"#);
        let theirs =
            pair("c", r#"{"strategy":"every-step","threads":7,"reducer":{"kind":"gather","compressor":"sign"}}"#);
        let (a, b) = ([pair("seed", "1"), ours], [pair("seed", "1"), theirs]);
        assert_eq!(first(&a, &b).unwrap(), "c.reducer.compressor: qsgd:4 here, sign there");
        for (short, long) in
            [("gather:qsgd:4", "gather:qsgd:4:512:max"), ("qsgd:4 with memory", "qsgd:4:512 with memory")]
        {
            let of = |text: &str| [pair("c", &format!(r#"{{"reducer":"{text}"}}"#))];
            assert_eq!(first(&of(short), &of(long)), None);
            assert!(first(&of(short), &of(&long.replace('4', "5"))).is_some());
        }
        let ruled = |text: &str| [pair("c", &format!(r#"{{"rules":[{{"slots":"fc.*","reducer":"{text}"}}]}}"#))];
        assert_eq!(first(&ruled("gather:qsgd:4"), &ruled("gather:qsgd:4:512:max")), None);
        let other = first(&ruled("gather:qsgd:4"), &ruled("gather:qsgd:5")).unwrap();
        assert_eq!(other, "c.rules[0].reducer: gather:qsgd:4 here, gather:qsgd:5 there");
        let dense = [pair("seed", "1"), pair("c", r#"{"strategy":"every-step","reducer":{"kind":"dense"}}"#)];
        assert_eq!(first(&a, &dense).unwrap(), "c.reducer.kind: gather here, dense there");
        assert_eq!(first(&a, &a[..1]).unwrap(), format!("c: {} here, absent there", a[1].1));
        assert_eq!(first(&a[..1], &[pair("seed", "1"), pair("more", "x")]).unwrap(), "more: absent here, x there");
        let other_threads = [pair("c", r#"{"threads":2}"#)];
        assert_eq!(first(&[pair("c", r#"{"threads":null}"#)], &other_threads), None);
        assert_eq!(first(&[pair("c", r#"{"threads":2,"device":"host"}"#)], &other_threads), None);
    }
}
