use super::*;

use std::thread;

fn pair(builder: LocalBuilder) -> (Session, Session) {
    let mut world = builder.build();
    let second = world.pop().expect("two ranks");
    (world.pop().expect("two ranks"), second)
}

fn short(capacity: usize) -> (Session, Session) {
    let capacity = NonZeroUsize::new(capacity).expect("room for a frame");
    pair(Local::builder(2).deadline(Duration::from_millis(30)).capacity(capacity))
}

#[test]
fn a_frame_that_does_not_come_ends_at_the_deadline_and_stops_the_world() {
    let (mut first, mut second) = short(1);
    let error = first.recv(1).unwrap_err();
    assert!(matches!(&error, CommError::Deadline { rank: 0, others, .. } if **others == [1]), "{error}");
    assert_eq!(first.send(1, vec![]).unwrap_err(), error);
    let told = second.recv(0).unwrap_err();
    assert!(matches!(told, CommError::Aborted { by: 0, .. }), "{told}");
}

#[test]
fn a_full_queue_waits_until_the_deadline() {
    let (mut first, _second) = short(2);
    first.send(1, vec![1]).unwrap();
    first.send(1, vec![2]).unwrap();
    assert!(matches!(first.send(1, vec![3]), Err(CommError::Deadline { others, .. }) if *others == [1]));
    assert_eq!(first.traffic().sent, 2);
}

#[test]
fn a_queue_of_one_frame_is_enough_for_a_long_stream_and_the_collectives() {
    let world = Local::builder(3).deadline(Duration::from_secs(20)).capacity(NonZeroUsize::MIN).build();
    let results = run_ranks(world, |mut comm| {
        let next = (comm.rank() + 1) % 3;
        match comm.rank() {
            0 => (0..500).try_for_each(|i| comm.send(next, vec![i as u8]))?,
            1 => (0..500).try_for_each(|i| comm.recv(0).map(|frame| assert_eq!(frame, [i as u8])))?,
            _ => {}
        }
        comm.broadcast(2, &mut vec![1])?;
        comm.all_reduce_sum(&mut vec![1.0; 4000])
    });
    assert_eq!(results, vec![Ok::<_, CommError>(()); 3]);
}

#[test]
fn a_rank_that_leaves_frees_a_sender_that_waits_for_room() {
    let (mut first, second) = pair(Local::builder(2).deadline(Duration::from_secs(20)).capacity(NonZeroUsize::MIN));
    thread::scope(|threads| {
        let sender = threads.spawn(move || first.send(1, vec![1]).and_then(|()| first.send(1, vec![2])));
        drop(second);
        assert!(matches!(sender.join().unwrap(), Err(CommError::Lost { other: 1, .. })));
    });
}

#[test]
fn frames_are_moved_not_copied() {
    let (mut first, mut second) = short(1);
    let frame = vec![1; 100];
    let address = frame.as_ptr();
    first.send(1, frame).unwrap();
    let received = second.recv(0).unwrap();
    assert_eq!(received.as_ptr(), address);
}

#[test]
fn now_reads_the_clock_handed_in() {
    struct Noon;
    impl Clock for Noon {
        fn seconds(&self) -> f64 {
            43_200.0
        }
    }
    assert_eq!(Local::builder(1).clock(Arc::new(Noon)).build()[0].now(), 43_200.0);
    assert_eq!(Local::world(1)[0].now(), 0.0);
    assert!(Local::world(0).is_empty());
}
