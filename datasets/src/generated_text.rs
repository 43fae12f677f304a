//! Sentences from a small grammar: the class decides which nouns and verbs are likely.
//!
//! Every content word comes from the class's own list in four of ten cases, and from the list of a random class
//! otherwise. One word is thus a hint and never a proof; a model has to weigh all words of a text.

use briquette_core::{Key, KeyRng};
use rand::Rng;

use crate::catalog::AG_NEWS_CLASSES;
use crate::error::DataError;
use crate::text::{Row, Rows, TextSource};

const TRAIN: usize = 4096;
const TEST: usize = 1024;
/// Probability that a content word is drawn from the text's own class; otherwise it belongs to it one time in four.
const OWN: f64 = 0.4;

/// Vocabulary of one class.
struct Topic {
    actors: [&'static str; 8],
    verbs: [&'static str; 8],
    things: [&'static str; 8],
}

/// Topics in the order of the class names.
#[rustfmt::skip]
const TOPICS: [Topic; 4] = [
    Topic {
        actors: ["president", "minister", "rebels", "parliament", "ambassador", "refugees", "soldiers", "voters"],
        verbs: ["condemn", "elect", "besiege", "pardon", "evacuate", "recognise", "shell", "petition"],
        things: ["treaty", "border", "ceasefire", "election", "embassy", "hostages", "capital", "sanctions"],
    },
    Topic {
        actors: ["striker", "coach", "goalkeeper", "champions", "pitcher", "sprinter", "referee", "rookie"],
        verbs: ["score", "defend", "win", "tackle", "qualify for", "draw", "outrun", "train for"],
        things: ["final", "penalty", "season", "medal", "league", "record", "tournament", "playoff"],
    },
    Topic {
        actors: ["investors", "retailer", "bank", "airline", "shareholders", "analysts", "regulator", "brokers"],
        verbs: ["buy", "audit", "sell", "merge", "downgrade", "insure", "lend", "forecast"],
        things: ["profit", "shares", "dividend", "oil price", "bonds", "takeover", "payroll", "tariff"],
    },
    Topic {
        actors: ["engineers", "researchers", "startup", "astronomers", "hackers", "programmers", "lab", "robots"],
        verbs: ["launch", "patch", "decode", "upgrade", "simulate", "download", "measure", "encrypt"],
        things: ["satellite", "browser", "genome", "chip", "telescope", "virus", "software", "network"],
    },
];

const QUALITIES: [&str; 8] = ["new", "long", "unexpected", "second", "costly", "famous", "quiet", "disputed"];
const TIMES: [&str; 7] =
    ["on monday", "yesterday", "this week", "after the delay", "in the morning", "again", "at last"];
const VOICES: [&str; 5] = ["officials said", "a report says", "sources said", "it was announced", "a witness said"];

pub(crate) fn generate(source: &TextSource) -> Result<Rows, DataError> {
    let key = Key::new(source.seed).purpose("generated texts");
    let rows = |purpose: &str, count: usize| {
        let key = key.purpose(purpose);
        let mut rows = Vec::new();
        // The texts need more than that, which is allocated gradually.
        rows.try_reserve_exact(count).map_err(|_| DataError::Memory { count, what: "generated texts" })?;
        rows.extend((0..count).map(|index| row(index % TOPICS.len(), &mut key.block(index))));
        Ok(rows)
    };
    Ok(Rows {
        train: rows("train", source.train_limit.unwrap_or(TRAIN))?,
        test: rows("test", source.test_limit.unwrap_or(TEST))?,
        class_names: AG_NEWS_CLASSES.iter().map(|&name| name.to_owned()).collect(),
        notes: vec!["texts are generated, not news".to_owned()],
    })
}

/// Generates a title (one clause), then a description of two or three clauses.
fn row(class: usize, rng: &mut KeyRng) -> Row {
    let mut text = clause(class, rng);
    for _ in 0..rng.random_range(2..=3) {
        let (first, second) = (clause(class, rng), pick(&VOICES, rng));
        text.push_str(&format!(". The {} {first} {}, {second}", pick(&QUALITIES, rng), pick(&TIMES, rng)));
    }
    Row { label: class as u8, text }
}

fn clause(class: usize, rng: &mut KeyRng) -> String {
    let actor = pick(&topic(class, rng).actors, rng);
    let verb = pick(&topic(class, rng).verbs, rng);
    let thing = pick(&topic(class, rng).things, rng);
    format!("{actor} {verb} the {thing}")
}

fn topic(class: usize, rng: &mut KeyRng) -> &'static Topic {
    let own = rng.random_bool(OWN);
    let other = rng.random_range(0..TOPICS.len());
    &TOPICS[if own { class } else { other }]
}

fn pick<'a>(list: &[&'a str], rng: &mut KeyRng) -> &'a str {
    list[rng.random_range(0..list.len())]
}
