//! Untrusted files: random ones, and valid ones with a byte changed or the end cut off.

use briquette_cli::file::Vector;
use briquette_testkit::vector_files::{check_npy, check_safetensors, npy, safetensors};
use proptest::prelude::*;
use proptest::sample::Index;

fn vector() -> Vector {
    let tensors = vec![("a".to_owned(), vec![2, 3]), ("b".to_owned(), vec![0, 4]), ("c".to_owned(), vec![])];
    Vector { values: (0..7_u8).map(|v| f32::from(v) - 2.5).collect(), tensors, notes: vec![] }
}

/// Threat F2.
#[test]
fn a_cut_or_changed_file_is_an_error_or_another_vector() {
    let one = Vector { values: vector().values[..6].to_vec(), tensors: vector().tensors[..1].to_vec(), notes: vec![] };
    damage(&npy(&one), check_npy);
    damage(&safetensors(&vector()), check_safetensors);
}

/// Cuts the file at every position, and changes every byte to every other value.
fn damage(whole: &[u8], check: fn(&[u8])) {
    (0..=whole.len()).for_each(|end| check(&whole[..end]));
    for (at, with) in (0..whole.len()).flat_map(|at| (0..=255).map(move |with| (at, with))) {
        let mut bytes = whole.to_vec();
        bytes[at] = with;
        check(&bytes);
    }
}

/// Generates pieces of headers in any order.
fn headers() -> impl Strategy<Value = String> {
    let parts = "{ } ( ) ' : , 'descr' 'shape' 'fortran_order' '<f4' '>f8' True False 0 1 2 3 7L 4294967296 18446744073709551615";
    let part = proptest::sample::select(parts.split(' ').collect::<Vec<_>>());
    proptest::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn headers_of_any_parts_are_refused_or_read(header in headers(), data in proptest::collection::vec(any::<u8>(), 0..40)) {
        let mut bytes = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
        bytes.extend(data);
        check_npy(&bytes);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused(order in any::<bool>(), shape in proptest::collection::vec(any::<Index>(), 0..5), len in 0..64_usize) {
        let sizes = [0, 1, 2, 3, 4, 8, 1 << 31, 1 << 32, 1 << 63, u64::MAX];
        let shape: String = shape.iter().map(|at| format!("{},", at.get(&sizes))).collect();
        let order = if order { "True" } else { "False" };
        let header = format!("{{'descr': '<f4', 'fortran_order': {order}, 'shape': ({shape})}}");
        let head = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
        check_npy(&[head, vec![1; len]].concat());
    }
}
