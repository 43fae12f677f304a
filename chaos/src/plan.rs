//! Plan of a soak episode: the run, the faults and their times, all derived from one seed.

use std::fmt;
use std::time::Duration;

use nix::sys::signal::Signal;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Runs with different kinds of state between steps, and one without any.
const EXCHANGES: [&str; 13] = [
    "--momentum-correction on --controller gravac:window=2,epsilon=0.3,min=4x,max=20x",
    "--momentum-correction on --compressor topk:50x:q8 --controller schedule:from=4x,epochs=2",
    "--compressor topk:0.05 --feedback error --controller gravac:window=2,epsilon=0.3,min=4x,max=20x",
    "--compressor topk:0.05 --feedback error-inside",
    "--compressor sign --feedback error --per-slot on",
    "--compressor topk:0.1 --feedback ef21",
    "--compressor qsgd:4 --feedback diana",
    "--compressor topk:20x:q8 --bucket-values 20000",
    "--compressor topk:20x:q8 --bucket-values 20000 --overlap backward",
    "--reducer power-sgd:2",
    "--reducer shared-random-k:5x --controller schedule:from=2x",
    "--local-steps 3",
    "--reducer dense",
];

/// Faults that this machine can inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// It can mount a small disk.
    pub disks: bool,
    /// It can shift a process's clock.
    pub clocks: bool,
}

/// Plan of an episode.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Seed of all draws.
    pub seed: u64,
    /// Trainer program.
    pub trainer: &'static str,
    /// Number of processes.
    pub ranks: usize,
    /// Length of the run in steps.
    pub steps: u64,
    /// Flags that determine the run's bits.
    pub flags: String,
    /// Steps between checkpoints, and epochs between evaluations, of the undisturbed run.
    pub reference: (u64, u64),
    /// The same of the disturbed run.
    pub cadence: (u64, u64),
    /// Events in order.
    pub events: Vec<Event>,
}

/// A fault and its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// After this many more steps than at the previous event…
    pub steps: usize,
    /// …or after this time, whichever comes first.
    pub patience: Duration,
    /// The fault.
    pub fault: Fault,
}

/// A fault of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// SIGKILL.
    Kill(Target),
    /// SIGSTOP, and SIGCONT after this time.
    Pause(Target, Duration),
    /// A signal that asks the launcher to stop; the run is resumed afterwards.
    Stop(Signal),
    /// All connections to rank 0 are reset.
    Cut,
    /// The link to rank 0 is limited to this many bytes a second, for this time.
    Slow(u64, Duration),
    /// The link to rank 0 has this additional latency, for this time.
    Late(Duration, Duration),
    /// The link to rank 0 passes nothing for this time, and then everything.
    Frozen(Duration),
    /// One bit of the byte at this offset of a connection to rank 0 is flipped.
    Flip(u64),
    /// Connections to rank 0 lose everything silently.
    Gone,
    /// The disk is full for this time.
    Full(Duration),
    /// The wall clock jumps by this many seconds.
    Clock(i64),
    /// A file is damaged while nothing runs; the run is resumed afterwards.
    Damage(Damage),
    /// This many connections by processes that are no ranks.
    Strangers(usize),
    /// Directories next to the checkpoints that are no checkpoints.
    Stray,
}

/// Target of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One rank.
    Rank(usize),
    /// All ranks.
    Ranks,
    /// The launcher.
    Launcher,
}

/// Damage of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Damage {
    /// Damaged file.
    pub file: Victim,
    /// Kind of damage.
    pub harm: Harm,
    /// Position, from 0 to 1 of its length.
    pub place: f64,
}

/// File to be damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// A rank's file of the newest checkpoint.
    Rank(usize),
    /// Replicated state of the newest checkpoint.
    Common,
    /// The newest checkpoint's manifest.
    Manifest,
    /// The record of the steps.
    Metrics,
}

/// Kind of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// This bit of a byte is flipped.
    Flip(u8),
    /// The file is truncated there.
    Truncate,
    /// The file is removed.
    Remove,
}

impl Plan {
    /// Draws an episode with `events` events. A calm one kills nothing, so that processes live long.
    pub fn draw(seed: u64, events: usize, calm: bool, abilities: Abilities) -> Plan {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let ranks = if rng.random_bool(0.7) { 2 } else { 3 };
        let exchange = *EXCHANGES.choose(&mut rng).expect("not empty");
        let adam = !exchange.contains("momentum-correction on") && rng.random_bool(0.25);
        let text = rng.random_bool(0.2);
        let optimizer = if adam { "--optimizer adam --lr 0.002" } else { "--optimizer sgd --lr 0.1" };
        let schedule = ["constant", "cosine", "one-cycle"].choose(&mut rng).expect("not empty");
        let batch = rng.random_range(1..4);
        let decay = if exchange.contains("local-steps") { "--weight-decay 0" } else { "" };
        let flags = format!(
            "--dataset generated --train-limit 64 --test-limit 16 --batch {batch} --epochs 2000 --schedule {schedule} --seed {} \
             --clock fixed:50ms {} {optimizer} {decay} {exchange}",
            rng.random_range(1..1000),
            if text { "--model lstm" } else { "--model resnet8" },
        );
        let cadence =
            |rng: &mut Xoshiro256PlusPlus| (rng.random_range(2..12), *[1, 3, 2000].choose(rng).expect("not empty"));
        let reference = cadence(&mut rng);
        let background = if rng.random_bool(0.25) { " --background-saving on" } else { "" };
        let other = if rng.random_bool(0.5) { cadence(&mut rng) } else { reference };
        let events: Vec<Event> = (0..events).map(|_| Event::draw(&mut rng, ranks, calm, abilities)).collect();
        let steps: usize = events.iter().map(|event| event.steps + 6).sum();
        let steps = steps as u64 + if calm { 600 } else { 20 };
        let trainer = if text { "ag-news" } else { "cifar" };
        let flags = flags + background;
        Plan { seed, trainer, ranks, steps, flags, reference, cadence: other, events }
    }

    /// Returns whether evaluations take place at the same steps in both runs.
    pub fn same_evaluations(&self) -> bool {
        self.reference.1 == self.cadence.1
    }

    /// Returns the trainer's arguments, for a run in `out` with this cadence.
    pub fn arguments(&self, out: &str, (checkpoint, evaluate): (u64, u64)) -> Vec<String> {
        let text = format!(
            "{} --steps {} --checkpoint-every {checkpoint} --eval-every {evaluate} --plain --out {out}",
            self.flags, self.steps
        );
        text.split_whitespace().map(str::to_owned).collect()
    }
}

impl Event {
    fn draw(rng: &mut Xoshiro256PlusPlus, ranks: usize, calm: bool, abilities: Abilities) -> Event {
        let steps = if calm { rng.random_range(5..40) } else { rng.random_range(0..14) };
        let patience = Duration::from_millis(if calm { 60_000 } else { rng.random_range(0..12_000) });
        Event { steps, patience, fault: Fault::draw(rng, ranks, calm, abilities) }
    }
}

impl Fault {
    fn draw(rng: &mut Xoshiro256PlusPlus, ranks: usize, calm: bool, abilities: Abilities) -> Fault {
        loop {
            let fault = Fault::any(rng, ranks);
            let gentle = matches!(
                fault,
                Fault::Pause(..)
                    | Fault::Slow(..)
                    | Fault::Late(..)
                    | Fault::Frozen(_)
                    | Fault::Clock(_)
                    | Fault::Strangers(_)
                    | Fault::Stray
            );
            let possible = match fault {
                Fault::Full(_) => abilities.disks,
                Fault::Clock(_) => abilities.clocks,
                _ => true,
            };
            if possible && (gentle || !calm) {
                return fault;
            }
        }
    }

    fn any(rng: &mut Xoshiro256PlusPlus, ranks: usize) -> Fault {
        let rank = rng.random_range(0..ranks);
        let short = Duration::from_millis(rng.random_range(200..4000));
        let someone = *[Target::Rank(rank), Target::Ranks, Target::Launcher].choose(rng).expect("not empty");
        match rng.random_range(0..100) {
            0..20 => Fault::Kill(Target::Rank(rank)),
            20..28 => Fault::Kill(Target::Ranks),
            28..36 => Fault::Kill(Target::Launcher),
            36..44 => Fault::Pause(someone, short),
            44..52 => Fault::Stop(*[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].choose(rng).expect("not empty")),
            52..57 => Fault::Cut,
            57..61 => Fault::Slow(rng.random_range(20_000..500_000), short),
            61..64 => Fault::Late(Duration::from_millis(rng.random_range(1..40)), short),
            64..67 => Fault::Frozen(short),
            67..71 => Fault::Flip(rng.random_range(0..60_000)),
            71 => Fault::Gone,
            72..79 => Fault::Full(short),
            // Less than a day, the clock difference that certificates tolerate.
            79..84 => Fault::Clock(rng.random_range(-80_000..80_000)),
            84..94 => Fault::Damage(Damage::draw(rng, rank)),
            94..97 => Fault::Strangers(rng.random_range(1..40)),
            _ => Fault::Stray,
        }
    }

    /// Returns a short name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill(_) => "kill",
            Fault::Pause(..) => "pause",
            Fault::Stop(_) => "stop",
            Fault::Cut => "cut",
            Fault::Slow(..) => "slow link",
            Fault::Late(..) => "long link",
            Fault::Frozen(_) => "frozen link",
            Fault::Flip(_) => "flip on the link",
            Fault::Gone => "half-open link",
            Fault::Full(_) => "full disk",
            Fault::Clock(_) => "clock jump",
            Fault::Damage(_) => "damaged file",
            Fault::Strangers(_) => "strangers",
            Fault::Stray => "stray directories",
        }
    }

    /// Describes the target and magnitude.
    pub fn target(self) -> String {
        match self {
            Fault::Kill(target) => target.to_string(),
            Fault::Pause(target, time) => format!("{target} {time:?}"),
            Fault::Stop(signal) => format!("launcher {signal}"),
            Fault::Slow(rate, time) => format!("{rate} B/s {time:?}"),
            Fault::Late(latency, time) => format!("{latency:?} {time:?}"),
            Fault::Frozen(time) | Fault::Full(time) => format!("{time:?}"),
            Fault::Flip(place) => format!("byte {place}"),
            Fault::Clock(seconds) => format!("{seconds:+} s"),
            Fault::Damage(Damage { file, harm, place }) => format!("{file:?} {harm:?} at {place:.4}"),
            Fault::Strangers(count) => count.to_string(),
            Fault::Cut | Fault::Gone | Fault::Stray => String::new(),
        }
    }
}

impl Damage {
    fn draw(rng: &mut Xoshiro256PlusPlus, rank: usize) -> Damage {
        let file =
            *[Victim::Rank(rank), Victim::Common, Victim::Manifest, Victim::Metrics].choose(rng).expect("not empty");
        let harm = match rng.random_range(0..4) {
            0 => Harm::Truncate,
            1 if rng.random_bool(0.5) => Harm::Remove,
            _ => Harm::Flip(rng.random_range(0..8)),
        };
        Damage { file, harm, place: rng.random() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Rank(rank) => write!(f, "rank {rank}"),
            Target::Ranks => f.write_str("all ranks"),
            Target::Launcher => f.write_str("launcher"),
        }
    }
}
