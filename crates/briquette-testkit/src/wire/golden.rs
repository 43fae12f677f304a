//! Frames written by hand, of every kind. The fuzz targets also start from them.

/// A compressor's text, its input, and the frame after magic and version, in hexadecimal. Without a text, no compressor creates
/// such a frame.
pub type Golden = (&'static str, &'static [f32], &'static str);

/// Indices 1, 6, 7 of 8: gaps 1, 4, 0; r = 0: "01" "00001" "1", lowest bit first 0b1100_0010 (8 bits, and r = 1 needs 8
/// too: the smaller wins).
const SPARSE: &[f32] = &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, -2.0, 1.0];

const EXPONENTS: &[f32] = &[
    -2.0, -2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
    1.0, 0.5,
];

/// In the order of their kinds.
pub const GOLDEN: &[Golden] = &[
    // 1.0 is 0x3f800000, -2.0 is 0xc0000000; stored lowest byte first.
    ("dense", &[1.0, -2.0], "00 02000000 0000803f 000000c0"),
    // Sign, 5 exponent bits (bias 15), 10 fraction bits: 1.0 = 0x3c00, -2.0 = 0xc000.
    ("f16", &[1.0, -2.0], "01 02000000 003c 00c0"),
    ("bf16", &[1.0, -2.0], "02 02000000 803f 00c0"),
    ("topk:0.375", SPARSE, "03 08000000 03000000 00 c2 0000803f 000000c0 0000803f"),
    // The largest is 2 = 2^1: exponent 1 - 14 = -13 = 0xf3. 1·2^13 = 0x7000 (exponent 28 = 13 + 15), -2·2^13 = 0xf400.
    ("topk:0.375:f16", SPARSE, "04 08000000 03000000 00 c2 f3 0070 00f4 0070"),
    // Range [1, 2]; levels 0, 127 with the sign bit, 0.
    ("topk:0.375:q8", SPARSE, "05 08000000 03000000 00 c2 0000803f 00000040 00 ff 00"),
    // 3 bits, buckets of 2: scales 3 and 1; levels 3, 1 | 0, 3: codes 3, 4+1, 0, 4+3 = 0b111_000_101_011 = 0x0e2b.
    ("qsgd:3:2:max", &[3.0, -1.0, 0.0, -1.0], "06 04000000 03 02000000 00004040 0000803f 2b0e"),
    // 5 levels take 4 bits: codes 5 and 8 + 1.
    ("qsgd:s5:2:max", &[5.0, -1.0], "06 02000000 05 02000000 0000a040 95"),
    // (1 + 3)/2 = 2 and 5; signs +, -, - : 0b110.
    ("sign:2", &[1.0, -3.0, -5.0], "07 03000000 02000000 00000040 0000a040 06"),
    // Exponent fields 127 and 128; signs 0b10.
    ("natural", &[1.0, -2.0], "08 02000000 7f 80 02"),
    // Means of both signs, bucket by bucket: 1 and -3, 0 (there is none) and -5; bits 0b110.
    ("one-bit:2", &[1.0, -3.0, -5.0], "09 03000000 02000000 0000803f 000040c0 00000000 0000a0c0 06"),
    // Ranges [0, 1] and [2, 2].
    ("minmax:2", &[0.0, 1.0, 2.0], "0a 03000000 02000000 00000000 0000803f 00000040 00000040 00 ff 00"),
    // Base 2, scale 8: 8 is level 3 and 4 level 2, in 3 bits: 3 and 4 + 2 = 0b110_011.
    ("dither:2:3:512:max", &[8.0, -4.0], "0b 02000000 03 00000040 00020000 00000041 33"),
    // E3M0 of scale 16: 16 is code 7, -0.25 code 1 with a sign, 8 + 1.
    ("float4:e3m0:3", &[16.0, -0.25, 0.0], "0b 03000000 07 00000040 03000000 00008041 97 00"),
    // Levels 3, -1, 0: omega(4) = 10 100 0 and +, omega(2) = 10 0 and -, omega(1) = 0: 1010 0001 0010, lowest bit first.
    ("qsgd:3:512:max:elias", &[3.0, -1.0, 0.0], "0c 03000000 03 00020000 00004040 85 04"),
    // The dithered one in Elias codes: omega(4) and +, omega(3) = 11 0 and -: 101 0000 1101, lowest bit first.
    ("", &[8.0, -4.0], "0d 02000000 03 00000040 00020000 00000041 85 05"),
    // One index, 1, in one byte (01, r = 0), then kind 8 with one value: exponent 128, negative.
    ("topk:0.5+natural", &[0.0, -2.0], "0e 02000000 01000000 00 01000000 02 08 80 01"),
    // The largest is 2^-19, below 2^-17: exponent -19 - 14 = -33 = 0xdf. 2^-20·2^33 = 2^13 = 0x7000, and -2^14 = 0xf400.
    ("f16", &[1.0 / 1_048_576.0, -1.0 / 524_288.0], "0f 02000000 df 0070 00f4"),
    // The deviation is the root of 17: edges of the bins at 0 and ±3.09, a value in each: 3, 2, 1, 0.
    ("bins:2", &[5.0, 3.0, -3.0, -5.0], "10 04000000 02 04000000 0000a0c0 000040c0 00004040 0000a040 1b"),
    // Too few values for a table: the high halves.
    ("lossless", &[1.0, -2.0], "11 02000000 02 803f 00c0"),
    // Exponents 126 to 128 have codes of 2, 1 and 2 bits: 10, 0, 11. Six values in each stream; 24 signs and fractions.
    (
        "lossless",
        EXPONENTS,
        "11 18000000 03 7e 02 12 02 0100 0100 0100 0100 0f 00 00 20 8080 0000 00000000 00000000 00000000 00000000 00000000",
    ),
    // The number after 1.
    ("lossless", &[1.000_000_1], "11 01000000 00 0100803f"),
    // E2M1, scales 6 and 1: 6 is code 7, -4 code 6 with a sign, 8 + 6; 1 is code 7, -½ code 5 (3 of 6) with a sign, 8 + 5.
    ("float4:e2m1:2", &[6.0, -4.0, 1.0, -0.5], "12 04000000 21 02000000 0000c040 0000803f e7d7"),
];

/// Returns kind, length and payload of a frame written in hexadecimal.
pub fn content(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let digit = |d: u8| char::from(d).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
