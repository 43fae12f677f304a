//! Links and handshakes on arbitrary bytes: the assertions of the fuzz targets, on as many inputs as a test has time for.

use briquette_testkit::links;

/// Pseudo-random numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self, longest: usize) -> Vec<u8> {
        let len = self.next() as usize % (longest + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Threat S5.
#[test]
fn arbitrary_streams_end_with_a_reason_however_they_are_cut() {
    let mut numbers = Numbers(1);
    (0..2000).for_each(|_| links::check_stream(&numbers.bytes(400)));
}

/// Threat R2.
#[test]
fn frames_are_read_as_they_were_sent_up_to_the_first_lie() {
    let mut numbers = Numbers(2);
    for _ in 0..2000 {
        // Lies are rare among all bytes: more of them.
        let mut input = numbers.bytes(60);
        if let Some(first) = input.first_mut() {
            *first %= 8;
        }
        links::check_frames(&input);
    }
}

/// Threat S5.
#[test]
fn nobody_who_does_not_know_the_secret_is_believed() {
    let mut numbers = Numbers(3);
    (0..2000).for_each(|_| links::check_handshake(&numbers.bytes(300)));
}

/// Threat S5.
#[test]
fn introductions_and_answers_make_sense_or_are_refused() {
    let good = [
        r#"{"rank":1,"to":0,"world":2,"version":"0","role":{"Join":{"address":"a:1"}}}"#,
        r#"{"rank":1,"to":0,"world":2,"version":"0","role":{"Data":{"session":"s"}}}"#,
        r#""Welcome""#,
        r#"{"Refused":"no"}"#,
    ];
    let mut numbers = Numbers(4);
    for text in good {
        links::check_introduction(text.as_bytes());
        for _ in 0..500 {
            let mut text = text.as_bytes().to_vec();
            let at = numbers.next() as usize % text.len();
            text[at] = numbers.next() as u8;
            text.truncate(1 + numbers.next() as usize % (2 * text.len()));
            links::check_introduction(&text);
        }
    }
    links::check_introduction(&vec![b' '; 4097]);
    links::check_introduction(&[]);
}
