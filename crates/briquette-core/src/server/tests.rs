use super::testkit::{Finite, Leg, Noisy, Run, simulate, simulated, train};
use super::*;
use crate::comm::{Local, run_ranks};
use crate::compress::{Compressor, Dense, TopK};
use crate::config::ServerConfig;
use crate::error::{CommError, ReduceError, WireError};
use crate::{Key, Message};

/// A contribution of one value.
fn one(version: u64, value: f32, samples: u64) -> Contribution {
    let mut message = Message::default();
    Dense.compress_into(&[value], Key::new(0), &mut message);
    Contribution { version, samples, loss: f64::from(value), gradients: 1, message }
}

/// Two of three workers, rate 1: from 10, the mean of 1 and 4 of one and two samples is 3, and 7 is left. The third is late.
#[test]
fn a_server_by_hand() {
    let policy = BackupConfig { ranks: 2, spare: 1 }.build(3).unwrap();
    let mut server = Server::new(policy, vec![10.0], 3);
    let step = |x: &mut Vec<f32>, mean: &[f32], _: u64| {
        x[0] -= mean[0];
        Ok::<_, WireError>(())
    };
    let reply = |worker, verdict, task| Reply { worker, verdict, task };
    let gradient = Some(Task::Gradient);
    assert_eq!(server.begin(2), [0, 1, 2].map(|worker| reply(worker, None, gradient)));
    assert_eq!(server.arrived(2, one(0, 4.0, 2), step).unwrap(), [], "it waits for another");
    let accepted = Some(Verdict::Accepted);
    let both = [reply(0, accepted, gradient), reply(2, accepted, gradient)];
    assert_eq!(server.arrived(0, one(0, 1.0, 1), step).unwrap(), both);
    assert_eq!((server.model(), server.model_before(), server.version()), (&[7.0][..], &[10.0][..], 1));
    // Whatever it says, worker 1 has the model of version 0.
    assert_eq!(server.arrived(1, one(1, 99.0, 1), step).unwrap(), [reply(1, Some(Verdict::Late), gradient)]);
    assert_eq!(server.arrived(1, one(1, 2.0, 1), step).unwrap(), []);
    // The last update: who is in it stops, and who comes after it.
    let stops = [reply(1, accepted, None), reply(2, accepted, None)];
    assert_eq!(server.arrived(2, one(1, 2.0, 1), step).unwrap(), stops);
    assert_eq!(server.arrived(0, one(1, 2.0, 1), step).unwrap(), [reply(0, Some(Verdict::Late), None)]);
    assert_eq!((server.model(), server.busy().count()), (&[5.0][..], 0));
    let served = Served { accepted: 4, late: 2, gradients: 6, loss: 2.0, ..Served::default() };
    assert_eq!(*server.served(), served);
}

fn all(workers: usize) -> impl Iterator<Item = ServerConfig> {
    ServerConfig::all().into_iter().filter(move |config| config.get().build(workers).is_ok())
}

struct Of(ServerConfig);

impl std::fmt::Debug for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl PolicySettings for Of {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        self.0.get().build(workers)
    }
}

const PACES: &str = "0ms,50ms;lognormal=0.4;slow=0.1x10";

fn compressed() -> Uplink {
    Uplink::new(TopK::fraction(0.5).unwrap(), true)
}

fn same(a: &Run, b: &Run) -> bool {
    (&a.model, a.served) == (&b.model, b.served)
}

/// In worlds of 1, 2, 3 and 5 workers, with stragglers.
#[test]
fn on_a_simulated_network_every_policy_is_reproducible_to_the_bit() {
    for workers in [1, 2, 3, 5] {
        for config in all(workers) {
            let run = || simulate(&Of(config), workers, PACES, &Finite::default(), 20);
            let (a, b) = (run(), run());
            assert!(same(&a, &b) && (a.seconds, a.bytes) == (b.seconds, b.bytes), "{config}: {a:?} {b:?}");
        }
    }
}

/// Paused at version 9, and there saved and loaded into new ones: the same as paused alone.
#[test]
fn resuming_is_pausing_to_the_bit() {
    for config in all(3) {
        let run = |resumed, uplink: fn() -> Uplink| {
            let legs = [Leg { until: 9, resumed: false }, Leg { until: 20, resumed }];
            train(simulated(3, PACES), &Of(config), &Finite::default(), &legs, uplink)
        };
        assert!(same(&run(true, compressed), &run(false, compressed)), "{config}");
        let forgetful = run(true, || Uplink::new(TopK::fraction(0.5).unwrap(), false));
        assert!(!same(&run(true, compressed), &forgetful), "{config}: the residual counts");
    }
}

/// In threads, whose order no one decides, every policy gets to its version, and learns.
#[test]
fn in_threads_every_policy_ends() {
    for config in all(3) {
        let finite = Finite::default();
        let legs = [Leg { until: 40, resumed: false }];
        let run = train(Local::world(4), &Of(config), &finite, &legs, || Uplink::new(Dense, false));
        assert!(finite.norm(&run.model, 3) < 0.5 * finite.norm(&finite.start(), 3), "{config}: {run:?}");
    }
}

/// What is rejected is put back: at the end all gradients are in the model or wait.
#[test]
fn no_gradient_is_lost_with_a_memory() {
    let noisy = Noisy { rate: 0.01, ..Noisy::default() };
    let world = simulated(3, "0ms,50ms,50ms,120ms");
    let config = BackupConfig { ranks: 2, spare: 1 };
    let runs = run_ranks(world, |mut comm| {
        let rank = comm.rank();
        let mut recording = Recording { noisy: &noisy, rank, sum: vec![0.0; 10] };
        let mut x = noisy.start();
        if rank == 0 {
            let mut server = Server::new(config.build(3).unwrap(), x, 3);
            serve(&mut server, &mut recording, 12, &mut comm)?;
            // The sum of the means, times two.
            return Ok(recording.sum.iter().map(|sum| 2.0 * sum).collect());
        }
        let mut uplink = compressed();
        work(&mut uplink, &mut recording, (0, &mut 0), (Key::new(1), &mut x), &mut comm)?;
        Ok::<Vec<f32>, ReduceError>(recording.sum.iter().zip(uplink.residual()).map(|(sum, e)| sum - e).collect())
    });
    let runs: Vec<Vec<f32>> = runs.into_iter().map(Result::unwrap).collect();
    for (i, applied) in runs[0].iter().enumerate() {
        let sent: f32 = runs[1..].iter().map(|run| run[i]).sum();
        assert!((applied - sent).abs() < 1e-3 * (1.0 + sent.abs()), "{applied} applied of {sent}");
    }
}

/// Sums up the gradients of a worker, and what a server steps with.
struct Recording<'a> {
    noisy: &'a Noisy,
    rank: usize,
    sum: Vec<f32>,
}

impl Trainer for Recording<'_> {
    type Error = ReduceError;

    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
        let Batch::Number(number) = batch else { unreachable!("no policy here asks for all") };
        self.noisy.gradient_of(self.rank, number, x, out);
        self.sum.iter_mut().zip(&*out).for_each(|(sum, g)| *sum += g);
        Ok(Computed { samples: 1, loss: 0.0, batches: 1 })
    }

    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], _: u64) -> Result<(), ReduceError> {
        self.sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= self.noisy.rate * g);
        Ok(())
    }
}

/// A worker or a server that stops the world, a worker that leaves, and a gradient that is not finite: errors name the rank.
#[test]
fn who_fails_is_named_everywhere() {
    for (failing, aborts) in [(0, true), (2, true), (2, false)] {
        let errors = run_ranks(Local::world(4), |mut comm| {
            let (rank, noisy) = (comm.rank(), Noisy::default());
            let mut plain = Recording { noisy: &noisy, rank, sum: vec![0.0; 10] };
            if rank == failing {
                if aborts {
                    comm.abort("out of memory");
                }
                return Ok::<_, CommError>(None);
            }
            let done = if rank == 0 {
                let mut server = Server::new(AsyncSgd.build(3).unwrap(), noisy.start(), 3);
                serve(&mut server, &mut plain, 300, &mut comm)
            } else {
                let (mut x, mut uplink) = (noisy.start(), compressed());
                work(&mut uplink, &mut plain, (0, &mut 0), (Key::new(1), &mut x), &mut comm)
            };
            Ok(done.err().map(|error| error.to_string()))
        });
        let errors: Vec<String> = errors.into_iter().filter_map(Result::unwrap).collect();
        assert!(errors.iter().all(|error| error.contains(&format!("rank {failing}"))), "{errors:?}");
        // Where one has left quietly, the server is who misses it in the end.
        assert!(errors.len() == 3 || (!aborts && !errors.is_empty()), "{errors:?}");
    }
    let errors = run_ranks(Local::world(3), |mut comm| {
        let (rank, noisy) = (comm.rank(), Noisy { rate: 0.1, noise: f32::NAN });
        let mut plain = Recording { noisy: &noisy, rank, sum: vec![0.0; 10] };
        if rank == 0 {
            let mut server = Server::new(AsyncSgd.build(2).unwrap(), noisy.start(), 2);
            return Ok::<_, CommError>(serve(&mut server, &mut plain, 10, &mut comm).unwrap_err().to_string());
        }
        let (mut x, mut uplink) = (noisy.start(), compressed());
        Ok(work(&mut uplink, &mut plain, (0, &mut 0), (Key::new(1), &mut x), &mut comm).unwrap_err().to_string())
    });
    assert!(errors.iter().flatten().all(|error| error.contains("not finite")), "{errors:?}");
}

#[test]
fn frames_of_another_size_are_refused_on_both_sides() {
    let results = run_ranks(Local::world(2), |mut comm| {
        let noisy = Noisy::default();
        let mut plain = Recording { noisy: &noisy, rank: comm.rank(), sum: vec![0.0; 10] };
        if comm.rank() == 1 {
            let mut x = vec![0.0; 9];
            let mut uplink = compressed();
            let worked = work(&mut uplink, &mut plain, (0, &mut 0), (Key::new(1), &mut x), &mut comm);
            return Ok::<_, CommError>(worked.unwrap_err().to_string());
        }
        let mut server = Server::new(AsyncSgd.build(1).unwrap(), noisy.start(), 1);
        Ok(serve(&mut server, &mut plain, 10, &mut comm).unwrap_err().to_string())
    });
    let error = results[1].as_ref().unwrap();
    assert!(error.contains("rank 0") && error.contains("40") && error.contains("36"), "{error}");
}
