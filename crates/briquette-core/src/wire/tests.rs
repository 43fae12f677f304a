use super::*;

fn memory(message: &Message) -> usize {
    match &message.payload {
        Payload::Dense(values) => 4 * values.capacity(),
        Payload::Half { bits, .. } => bits.capacity(),
        Payload::Sparse { indices, values } => {
            4 * indices.capacity()
                + match values {
                    Values::F32(values) => 4 * values.capacity(),
                    Values::F16 { bits, .. } => 2 * bits.capacity(),
                    Values::Q8 { ranges, codes } => 8 * ranges.capacity() + codes.capacity(),
                    Values::Coded(message) => memory(message),
                }
        }
        Payload::Quantized { scales, codes, .. } => 4 * scales.capacity() + codes.capacity(),
        Payload::Sign { scales, signs, .. } => 4 * scales.capacity() + signs.capacity(),
        Payload::Levels { levels, codes, .. } => 4 * levels.capacity() + codes.capacity(),
        Payload::Affine { ranges, codes, .. } => 8 * ranges.capacity() + codes.capacity(),
        Payload::Lossless { values, coded } => 4 * values.capacity() + coded.capacity(),
        Payload::Natural { exponents, signs } => exponents.capacity() + signs.capacity(),
    }
}

/// Decodes the densest frames of each kind into fresh storage.
#[test]
fn decoding_takes_at_most_eight_times_the_bytes_of_the_frame_twenty_where_values_are_coded_and_33_where_losslessly() {
    let check = |message: &Message, times: usize, name: &str| {
        let (mut bytes, mut fresh) = (Vec::new(), Message::default());
        message.encode_into(&mut bytes);
        assert_eq!(bytes.len(), message.encoded_len());
        fresh.decode_from(&bytes).unwrap();
        assert_eq!(&fresh, message);
        assert!(memory(&fresh) <= times * bytes.len(), "{name}: {} for {}", memory(&fresh), bytes.len());
    };
    let n = 5000;
    for kind in [ValueKind::F32, ValueKind::F16, ValueKind::Q8] {
        let mut message = Message::default();
        let (indices, values) = message.sparse(n, kind);
        indices.extend(0..n as u32);
        match values {
            Values::F32(values) => values.resize(n, 1.0),
            Values::F16 { bits, .. } => bits.resize(n, 0),
            Values::Q8 { ranges, codes } => {
                ranges.resize(n.div_ceil(Q8_BLOCK), [0.5, 1.0]);
                codes.resize(n, 255);
            }
            Values::Coded(_) => unreachable!("no kind asks for it"),
        }
        check(&message, 8, &format!("{kind:?}"));
    }
    let mut message = Message::default();
    let (scales, codes) = message.quantized(n, (Grid::Linear { levels: 127 }, Coding::Elias), n as u32);
    scales.sized(1).fill(1.0);
    codes.sized(n).fill(0);
    check(&message, 8, "Elias");
    let mut zeros = Message::default();
    zeros.write_lossless(&vec![0.0; n]).unwrap();
    check(&zeros, 33, "lossless");
    let mut sparse = Message::default();
    let (indices, values) = sparse.coded(n);
    indices.extend(0..n as u32);
    *values = message;
    check(&sparse, 20, "coded");
    let (indices, values) = sparse.coded(n);
    indices.extend(0..n as u32);
    *values = zeros;
    check(&sparse, 33, "coded, lossless");
}

/// Messages of every compressor, for vectors with and without a whole block.
fn messages() -> Vec<Message> {
    let lengths = [0, 1, 300, 3000];
    let of = |config: crate::settings::CompressorConfig| {
        lengths.map(|len| {
            let (x, mut message) = ((0..len).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>(), Message::default());
            config.build().compress_into(&x, crate::Key::new(1), &mut message);
            message
        })
    };
    crate::settings::CompressorConfig::defaults().into_iter().flat_map(of).collect()
}

#[test]
fn a_lent_frame_is_the_length_and_the_wire_form() {
    let mut lent = 0;
    for mut message in messages() {
        let (mut written, mut spare) = (Vec::new(), Vec::new());
        message.encode_into(&mut written);
        let length = (written.len() as u32).to_le_bytes();
        for _ in 0..2 {
            assert_eq!(message.to_frame(&mut spare).unwrap(), [&length[..], &written].concat());
        }
        lent += usize::from(spare.is_empty());
    }
    // f16, bf16, and affine 8-bit codes.
    assert_eq!(lent, 3 * 4);
}

#[test]
fn a_message_keeps_the_frame_that_it_reads_and_gives_the_one_before() {
    let mut read = Message::default();
    for (turn, mut message) in messages().into_iter().enumerate() {
        let mut frame = message.to_frame(&mut Vec::new()).unwrap().to_vec();
        let (place, sent) = (frame.as_ptr(), frame.clone());
        read.read_frame(&mut frame).unwrap();
        assert_eq!(read, message, "{turn}");
        let lends = matches!(message.payload, Payload::Half { .. } | Payload::Affine { .. });
        assert_eq!(frame.is_empty(), lends);
        assert!(frame.capacity() == 0 || !lends || frame.as_ptr() != place);
        let (mut spare, mut copied) = (Vec::new(), Message::default());
        let again = read.to_frame(&mut spare).unwrap();
        assert!(again == sent && (again.as_ptr() == place) == lends);
        // From a copy, and back into storage that held a frame.
        copied.decode_from(&sent[4..]).unwrap();
        assert_eq!(copied, message);
        copied.read_frame(&mut sent.clone()).unwrap();
        copied.decode_from(&sent[4..]).unwrap();
        assert_eq!(copied.to_frame(&mut spare).unwrap(), sent);
    }
}

#[test]
fn a_damaged_frame_is_refused_alike_whether_it_is_kept_or_copied() {
    for mut message in messages().into_iter().filter(|message| message.len() == 300) {
        let frame = message.to_frame(&mut Vec::new()).unwrap().to_vec();
        for at in (0..frame.len()).step_by(7) {
            let mut damaged = frame.clone();
            damaged[at] ^= 0x40;
            let (mut kept, mut copied) = (Message::default(), Message::default());
            let error = kept.read_frame(&mut damaged).unwrap_err();
            assert_eq!(kept, Message::default());
            if at >= 4 {
                assert_eq!(copied.decode_from(&damaged[4..]), Err(error));
            }
            assert!(Message::default().read_frame(&mut frame[..at].to_vec()).is_err());
        }
        // A valid checksum over an invalid value: all exponent bits of the first value are set.
        if let Payload::Half { .. } = message.payload {
            let mut wrong = frame.clone();
            wrong[12..14].copy_from_slice(&[0xff, 0x7f]);
            let end = wrong.len() - CHECKSUM;
            let checksum = crc32fast::hash(&wrong[4..end]);
            wrong[end..].copy_from_slice(&checksum.to_le_bytes());
            let expected = Err(WireError::Field { what: "value", value: 0x7fff });
            assert_eq!(Message::default().decode_from(&wrong[4..]), expected);
            assert_eq!(Message::default().read_frame(&mut wrong), expected);
        }
    }
}

#[test]
fn compressing_and_decoding_again_keeps_the_storage() {
    let (mut message, mut bytes) = (Message::default(), Vec::new());
    message.dense(100).sized(100).fill(1.0);
    message.encode_into(&mut bytes);
    let Payload::Dense(values) = &message.payload else { unreachable!() };
    let place = values.as_ptr();
    message.decode_from(&bytes).unwrap();
    message.dense(50).sized(50).fill(2.0);
    let Payload::Dense(values) = &message.payload else { unreachable!() };
    assert_eq!(values.as_ptr(), place);
}
