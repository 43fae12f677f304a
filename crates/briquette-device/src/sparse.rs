//! Sparse messages on the host: values in other forms than f32, and kept values of any form.

use briquette_core::compress::Compressor;
use briquette_core::{Key, Message};

use crate::error::DeviceError;
use crate::frame::{Frame, Wire};

/// First kind with coded values.
const CODED: u8 = 14;
/// Bytes of values in each block of 8-bit values: two ends, and at most 256 codes.
const Q8_BLOCK: usize = 256;

/// Encodes the values of a sparse message in f32 by a compressor. Values that are themselves a sparse message, which keeps all of them in
/// 16 or 8 bits (top-k of everything), take the form of top-k with short values.
pub(crate) fn recode(message: &mut Message, values: &mut dyn Compressor, key: Key) -> Result<(), DeviceError> {
    let mut coded = Message::default();
    let Some((_, kept)) = message.sparse_f32() else { panic!("only a sparse message has kept values") };
    values.compress_into(kept, key.purpose("values"), &mut coded);
    let (outer, inner, count) = (Wire::of(message), Wire::of(&coded), kept.len());
    let mut fields = outer.payload();
    let head = fields.bytes(5);
    let rest = fields.rest();
    let stream = &rest[..rest.len() - 4 * count];
    let frame = match inner.kind() {
        kind @ (4 | 5) => {
            let bytes = values_len(kind, count);
            let payload = inner.payload().rest();
            Frame::new(kind, message.len()).bytes(head).bytes(stream).bytes(&payload[payload.len() - bytes..])
        }
        kind => Frame::new(CODED, message.len())
            .bytes(head)
            .word(stream.len() as u32)
            .bytes(stream)
            .bytes(&[kind])
            .bytes(inner.payload().rest()),
    };
    frame.finish(message)
}

/// Bytes of `count` values of a sparse message of this kind.
fn values_len(kind: u8, count: usize) -> usize {
    match kind {
        3 => 4 * count,
        4 => 1 + 2 * count,
        _ => 8 * count.div_ceil(Q8_BLOCK) + count,
    }
}

/// Returns the values that a sparse message keeps, decoded: those of a message of as many values that keeps all of them.
pub(crate) fn kept_values(message: &Message) -> Result<Vec<f32>, DeviceError> {
    if let Some((_, values)) = message.sparse_f32() {
        return Ok(values.to_vec());
    }
    let count = message.kept();
    let wire = Wire::of(message);
    let mut fields = wire.payload();
    fields.bytes(5);
    let mut alone = Message::default();
    match wire.kind() {
        CODED => {
            let stream = fields.word() as usize;
            fields.bytes(stream);
            let kind = fields.byte();
            Frame::new(kind, count).bytes(fields.rest()).finish(&mut alone)?;
        }
        kind => {
            let rest = fields.rest();
            // A gap of 0 is a one bit if the Rice parameter is 0.
            let mut stream = vec![0xff; count.div_ceil(8)];
            if let Some(last) = stream.last_mut().filter(|_| !count.is_multiple_of(8)) {
                *last = (1 << (count % 8)) - 1;
            }
            let values = &rest[rest.len() - values_len(kind, count)..];
            Frame::new(kind, count).word(count as u32).bytes(&[0]).bytes(&stream).bytes(values).finish(&mut alone)?;
        }
    }
    let mut values = vec![0.0; count];
    alone.decode_into(&mut values)?;
    Ok(values)
}
