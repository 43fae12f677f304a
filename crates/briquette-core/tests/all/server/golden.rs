//! Policies computed by hand, and policies that are equivalent to something simpler.

use briquette_core::comm::{Local, run_ranks};
use briquette_core::compress::{dense::Dense, top_k::TopK};
use briquette_core::config::{Config, Exchange, Feedback, ReducerConfig};
use briquette_core::error::{ReduceError, WireError};
use briquette_core::server::{PolicySettings, Server, Task, Uplink, Verdict, async_sgd::AsyncSgd};
use briquette_core::step::Driver;
use briquette_core::sync::Header;
use briquette_core::{Key, Layout};
use briquette_testkit::server::{Leg, Noisy, Problem, one, simulate, simulated, train};
use briquette_zoo::server::{
    async_local_sgd::AsyncLocalSgd, backup::Backup, picky::Picky, qsvrg::Qsvrg, synthesis::Synthesis,
};

/// Creates a server with a model of one value, initially 10; the optimizer's rate is 1.
fn server(config: &dyn PolicySettings, workers: usize) -> Server {
    let mut server = Server::new(config.build(workers).unwrap(), vec![10.0], workers);
    server.begin(100);
    server
}

/// Delivers a worker's value. Returns the verdict in the reply to that worker, and the model afterwards. `version` is that of
/// the model it received.
fn says(server: &mut Server, worker: usize, version: u64, value: f32) -> (Option<Verdict>, f32) {
    let step = |x: &mut Vec<f32>, mean: &[f32], _: u64| {
        x[0] -= mean[0];
        Ok::<_, WireError>(())
    };
    let replies = server.arrived(worker, one(version, value, 1), step).unwrap();
    let own = replies.iter().find(|reply| reply.worker == worker);
    (own.and_then(|reply| reply.verdict), server.model()[0])
}

const ACCEPTED: Option<Verdict> = Some(Verdict::Accepted);

/// 10 − 1 − 2 − 3 − 4, whatever the delays: 0, 1, 1 and 1.
#[test]
fn asynchronous_sgd_by_hand() {
    let mut server = server(&AsyncSgd, 2);
    assert_eq!(says(&mut server, 0, 0, 1.0), (ACCEPTED, 9.0));
    assert_eq!(says(&mut server, 1, 0, 2.0), (ACCEPTED, 7.0));
    assert_eq!(says(&mut server, 0, 1, 3.0), (ACCEPTED, 4.0));
    assert_eq!(says(&mut server, 1, 2, 4.0), (ACCEPTED, 0.0));
    assert_eq!((server.served().delays, server.served().longest_delay), (3, 1));
}

/// A worker that is ten times slower costs the others nothing: 3 fast ones make 30 updates while it makes one.
/// Synchronously 93 updates would take 11.5 s; here they take 1.5 s, and the slowest one's last gradient.
#[test]
fn nobody_waits_for_the_slowest() {
    let run = simulate(&AsyncSgd, 4, "0ms,500ms,50ms", &Noisy::default(), 93);
    assert!((1.5..=2.0).contains(&run.seconds), "{}", run.seconds);
    assert!((28..=33).contains(&run.served.longest_delay), "{:?}", run.served);
}

/// A threshold of 1.5: from 10 to 9 is near, from 9 to 7 too far, and so is from 7 to 3.
#[test]
fn picky_sgd_by_hand() {
    let mut server = server(&Picky { threshold: 1.5 }, 2);
    let far = Some(Verdict::Far);
    assert_eq!(says(&mut server, 0, 0, 1.0), (ACCEPTED, 9.0));
    assert_eq!(says(&mut server, 1, 0, 2.0), (ACCEPTED, 7.0));
    assert_eq!(says(&mut server, 0, 1, 3.0), (far, 7.0));
    assert_eq!(says(&mut server, 0, 2, 4.0), (ACCEPTED, 3.0));
    assert_eq!(says(&mut server, 1, 2, 5.0), (far, 3.0));
    assert_eq!((server.served().accepted, server.served().far, server.version()), (3, 2, 3));
    assert!(!server.puts_back());
}

/// A distance and not its square: 1¼ is within 1½ (its square is not), and ⅝ is beyond ½ (its square is within).
#[test]
fn picky_sgd_measures_a_distance_by_hand() {
    let mut near = server(&Picky { threshold: 1.5 }, 2);
    assert_eq!(says(&mut near, 0, 0, 1.25), (ACCEPTED, 8.75));
    assert_eq!(says(&mut near, 1, 0, 1.0), (ACCEPTED, 7.75));
    let mut far = server(&Picky { threshold: 0.5 }, 2);
    assert_eq!(says(&mut far, 0, 0, 0.625), (ACCEPTED, 9.375));
    assert_eq!(says(&mut far, 1, 0, 1.0), (Some(Verdict::Far), 9.375));
    assert_eq!(says(&mut far, 0, 1, 0.25), (ACCEPTED, 9.125));
}

/// Half of each worker's change, the default for two workers: 10 − 4/2 − 2/2, and 7 − 6/2.
#[test]
fn asynchronous_local_sgd_by_hand() {
    let mut server = server(&AsyncLocalSgd { period: 2, mixing: None }, 2);
    assert_eq!(says(&mut server, 0, 0, 4.0), (ACCEPTED, 8.0));
    assert_eq!(says(&mut server, 1, 0, 2.0), (ACCEPTED, 7.0));
    assert_eq!(says(&mut server, 0, 1, 6.0), (ACCEPTED, 4.0));
}

/// v = (4 + 2)/2 = 3 from both full gradients; 3 − 1, 2 − ½, 1½ + ½, and one that is two versions late; 2 − 1.
#[test]
fn synthesis_by_hand() {
    let mut server = server(&Synthesis { epoch: 8, delay: 1 }, 2);
    assert_eq!(says(&mut server, 0, 0, 4.0), (None, 10.0));
    assert_eq!(says(&mut server, 1, 0, 2.0), (ACCEPTED, 7.0));
    assert_eq!((server.model_before(), server.version()), (&[10.0][..], 1));
    assert_eq!(says(&mut server, 0, 1, -1.0), (ACCEPTED, 5.0));
    assert_eq!(says(&mut server, 1, 1, -0.5), (ACCEPTED, 3.5));
    assert_eq!(says(&mut server, 1, 3, 0.5), (ACCEPTED, 1.5));
    assert_eq!(says(&mut server, 0, 2, 99.0), (Some(Verdict::Late), 1.5));
    assert_eq!(says(&mut server, 0, 4, -1.0), (ACCEPTED, 0.5));
}

/// Started within an epoch, without an estimate, it computes one first. H = (4 + 2)/2 = 3 at 10, which is marked; 3 − 1.5 and 3
/// − 2 from differences to it; then 1.5 at 4.5, which is marked.
#[test]
fn qsvrg_by_hand() {
    let mut server = server(&Qsvrg { epoch: 3 }, 2);
    assert_eq!(says(&mut server, 0, 0, 4.0), (None, 10.0));
    assert_eq!(says(&mut server, 1, 0, 2.0), (ACCEPTED, 7.0));
    assert_eq!(says(&mut server, 1, 1, -1.0), (None, 7.0));
    assert_eq!(says(&mut server, 0, 1, -2.0), (ACCEPTED, 5.5));
    assert_eq!(server.model_before(), [10.0]);
    assert_eq!(says(&mut server, 0, 2, -3.0), (None, 5.5));
    assert_eq!(says(&mut server, 1, 2, -1.0), (ACCEPTED, 4.5));
    assert_eq!(server.model_before(), [10.0]);
    assert_eq!(says(&mut server, 0, 3, 1.0), (None, 4.5));
    assert_eq!(says(&mut server, 1, 3, 2.0), (ACCEPTED, 3.0));
    assert_eq!(server.model_before(), [4.5]);
}

#[test]
fn synthesis_without_an_estimate_begins_an_epoch() {
    let policy = Synthesis { epoch: 8, delay: 1 }.build(1).unwrap();
    let mut server = Server::new(policy, vec![10.0], 1).at_version(3);
    assert_eq!(server.begin(100)[0].task, Some(Task::Full));
    assert_eq!(says(&mut server, 0, 3, 4.0), (ACCEPTED, 6.0));
    assert_eq!(says(&mut server, 0, 4, 1.0), (ACCEPTED, 1.0));
}

/// `½‖x − c‖²`, with a center per rank and batch that is a multiple of 1/64. At a rate of ¼ every sum is exact for three steps.
struct Dyadic;

const LEN: usize = 40;

impl Problem for Dyadic {
    fn start(&self) -> Vec<f32> {
        vec![0.0; LEN]
    }

    fn rate(&self) -> f32 {
        0.25
    }

    fn batches(&self) -> u64 {
        1
    }

    fn gradient_of(&self, rank: usize, batch: Option<u64>, x: &[f32], out: &mut Vec<f32>) {
        let key = Key::new(8).step(batch.unwrap_or_default()).rank(rank);
        let centre = |i| (key.word(i) % 2001) as f32 / 64.0 - 1000.0 / 64.0;
        out.clear();
        out.extend(x.iter().enumerate().map(|(i, x)| x - centre(i)));
    }
}

/// Trains synchronously on `ranks` ranks, with the gradients of a server's workers.
fn in_lock_step(reducer: &str, feedback: Feedback, ranks: usize) -> Vec<f32> {
    let reducer: ReducerConfig = reducer.parse().unwrap();
    let config = Config::every_step(Exchange { reducer, feedback, dense_below: Some(0), ..Exchange::default() });
    let models = run_ranks(Local::world(ranks), |mut comm| {
        let layout = Layout::flat(LEN);
        let mut driver = Driver::new(Key::new(5));
        driver.drive(config.build(&layout, ranks).unwrap(), layout);
        let (mut x, mut gradient) = (Dyadic.start(), Vec::new());
        for step in 0..3 {
            Dyadic.gradient_of(comm.rank() + 1, Some(step), &x, &mut gradient);
            let header = Header { samples: 1, ..Header::default() };
            let optimize = |x: &mut [f32], g: &[f32]| x.iter_mut().zip(g).for_each(|(x, g)| *x -= 0.25 * g);
            driver.take_step(header, (&mut gradient, &mut x), optimize, &mut comm).unwrap();
        }
        Ok::<_, ReduceError>(x)
    });
    models.into_iter().next().unwrap().unwrap()
}

#[test]
fn backup_ranks_without_spares_are_every_step_to_the_bit() {
    let topk = || Uplink::new(TopK::fraction(0.25).unwrap(), true);
    let dense = || Uplink::new(Dense, false);
    for workers in [2, 4] {
        let legs = [Leg { until: 3, resumed: false }];
        let backup = |uplink: fn() -> Uplink| {
            let world = simulated(workers, "0ms,50ms;lognormal=0.5");
            train(world, &Backup { ranks: workers, spare: 0 }, &Dyadic, &legs, uplink).model
        };
        let exact = in_lock_step("dense", Feedback::none(), workers);
        assert!(exact.iter().any(|x| *x != 0.0));
        assert_eq!(backup(dense), exact, "{workers} workers");
        let lossy = in_lock_step("gather:topk:4x", Feedback::error(), workers);
        assert!(lossy != exact);
        assert_eq!(backup(topk), lossy, "{workers} workers, top-k with a memory");
    }
}

/// With one worker nothing is delayed: plain SGD, to the bit.
#[test]
fn one_worker_is_sgd() {
    let noisy = Noisy { rate: 0.05, ..Noisy::default() };
    let (mut x, mut out) = (noisy.start(), Vec::new());
    for batch in 0..40 {
        noisy.gradient_of(1, batch, &x, &mut out);
        x.iter_mut().zip(&out).for_each(|(x, g)| *x -= noisy.rate * g);
    }
    let plain = simulate(&AsyncSgd, 1, "50ms", &noisy, 40);
    let picky = simulate(&Picky { threshold: 1e-9 }, 1, "50ms", &noisy, 40);
    let backup = simulate(&Backup { ranks: 1, spare: 0 }, 1, "50ms", &noisy, 40);
    for run in [plain, picky, backup] {
        assert_eq!(run.model, x);
        assert_eq!((run.served.accepted, run.served.far, run.served.late, run.served.longest_delay), (40, 0, 0, 0));
    }
}

/// A contribution that Picky SGD rejects is in no later contribution: with error feedback that sends everything, the result is
/// as without.
#[test]
fn what_picky_sgd_rejects_does_not_come_back() {
    let noisy = Noisy { rate: 0.3, noise: 0.05 };
    let run = |error_feedback| {
        let legs = [Leg { until: 200, resumed: false }];
        let world = simulated(8, "0ms,10ms;slow=0.02x100;seed=1");
        train(world, &Picky { threshold: 0.5 }, &noisy, &legs, || Uplink::new(Dense, error_feedback))
    };
    let (without, with) = (run(false), run(true));
    assert!(without.served.far > 0, "{:?}", without.served);
    assert_eq!((without.model, without.served), (with.model, with.served));
}
