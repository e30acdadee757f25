//! Encoding and decoding of struct_pack messages.

use proptest::prelude::*;

use crate::pack::{self, DecodeFault, Expected, Map, Text, TextBuf, TypeInfo, TypeLiteral, Wire};
use mcctl_base::upstream::Release;
use mcctl_base::{ClientId, ErrorCode};

const LATEST: Release = Release::LATEST;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn message<'a, T: Wire<'a>>(value: &T, info: &TypeInfo, literal: bool) -> Vec<u8> {
    let mut out = Vec::new();
    pack::encode(&mut out, info, literal, value.longest(), |packer| value.put(packer));
    out
}

#[test]
fn the_worked_examples_of_the_format_are_encoded_exactly() {
    let text = TypeInfo::of::<TextBuf>(LATEST);
    assert_eq!(hex(&message(&TextBuf::from("hello"), &text, false)), "76facf9d0568656c6c6f");
    assert_eq!(hex(&message(&TextBuf::from("hello"), &text, true)), "77facf9d04800c000568656c6c6f");
    let void = TypeInfo::of::<Expected<()>>(LATEST);
    assert_eq!(void.hash(), 0xaf28_68cc);
    assert_eq!(hex(&message::<Expected<()>>(&Ok(()), &void, false)), "cc6828af01");
    assert_eq!(hex(&message::<Expected<()>>(&Ok(()), &void, true)), "cd6828af0487fa010001");
    let uuid = TypeInfo::of::<ClientId>(LATEST);
    assert_eq!(hex(uuid.literal()), "fd04048989ff");
    assert_eq!(uuid.hash(), 0x3c6d_83e0);
}

#[test]
fn sizes_in_literals_are_base_127() {
    for (size, bytes) in [(1, "82"), (8, "89"), (126, "ff"), (127, "0182"), (127 * 127, "010182")] {
        let mut literal = TypeLiteral::new(LATEST);
        literal.size(size);
        let mut whole = TypeLiteral::new(LATEST);
        whole.byte(0);
        assert_eq!(hex(TypeInfo::from_parts(LATEST, &[]).literal()), "fdff");
        assert_eq!(hex(&literal.bytes), bytes, "{size}");
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

#[test]
fn a_message_of_another_type_is_refused_with_both_hashes() {
    let text = TypeInfo::of::<TextBuf>(LATEST);
    let error = pack::decode::<TextBuf>(&unhex("e0836d3c00"), &text).expect_err("another type").to_string();
    assert!(error.contains("0x3c6d83e0") && error.contains("0x9dcffa76"), "{error}");
}

#[test]
fn a_wrong_literal_is_refused_even_if_the_hash_matches() {
    let text = TypeInfo::of::<TextBuf>(LATEST);
    assert!(pack::decode::<TextBuf>(&unhex("77facf9d04800d000568656c6c6f"), &text).is_err());
    assert!(pack::decode::<TextBuf>(&unhex("77facf9d04800c010568656c6c6f"), &text).is_err());
}

#[test]
fn every_length_width_is_decoded() {
    let text = TypeInfo::of::<TextBuf>(LATEST);
    for body in ["77facf9d000161", "77facf9d08010061", "77facf9d100100000061", "77facf9d18010000000000000061"] {
        assert_eq!(pack::decode::<TextBuf>(&unhex(body), &text), Ok(TextBuf::from("a")), "{body}");
    }
}

#[test]
fn a_count_beyond_the_remaining_bytes_is_refused_before_allocation() {
    let list = TypeInfo::of::<Vec<u64>>(LATEST);
    let mut body = (list.hash() | 1).to_le_bytes().to_vec();
    body.push(0b11000);
    body.extend_from_slice(&u64::MAX.to_le_bytes());
    let error = pack::decode::<Vec<u64>>(&body, &list).expect_err("too long");
    assert_eq!(error.fault, DecodeFault::TooLong { length: u64::MAX, limit: 0 });
}

#[test]
fn a_list_with_too_many_items_is_refused() {
    let list = TypeInfo::of::<Vec<TextBuf>>(LATEST);
    let mut body = (list.hash() | 1).to_le_bytes().to_vec();
    body.push(0b10000);
    body.extend_from_slice(&((1u32 << 20) + 1).to_le_bytes());
    body.resize(body.len() + (5 << 20), 0);
    let error = pack::decode::<Vec<TextBuf>>(&body, &list).expect_err("too many");
    assert_eq!(error.fault, DecodeFault::TooLong { length: (1 << 20) + 1, limit: 1 << 20 });
}

#[test]
fn an_error_contains_the_path_of_the_value() {
    let list = TypeInfo::of::<Vec<Expected<TextBuf>>>(LATEST);
    let mut body = list.hash().to_le_bytes().to_vec();
    body.extend_from_slice(&[2, 1, 1, b'x', 1, 5, b'y']);
    let error = pack::decode::<Vec<Expected<TextBuf>>>(&body, &list).expect_err("short");
    assert_eq!(error.fault, DecodeFault::TooLong { length: 5, limit: 1 });
    assert!(error.to_string().starts_with("[1]: "), "{error}");
}

type Sample = (Vec<u8>, Vec<(u64, String)>, Option<u32>, Result<bool, i32>);

proptest! {
    #[test]
    fn values_round_trip(sample in any::<Sample>(), long in 0usize..70_000, literal in any::<bool>()) {
        let (bytes, pairs, option, result) = sample;
        let long = vec![b'z'; long];
        let strings: Vec<Text<'_>> = vec![Text(&bytes), Text(&long)];
        let info = TypeInfo::from_parts(LATEST, &[<Vec<Text<'_>> as Wire>::literal]);
        let body = message(&strings, &info, literal);
        prop_assert_eq!(pack::decode::<Vec<Text<'_>>>(&body, &info), Ok(strings));

        let map = Map(pairs.into_iter().map(|(k, v)| (k, TextBuf::from(v))).collect());
        let info = TypeInfo::of::<Map<u64, TextBuf>>(LATEST);
        let body = message(&map, &info, literal);
        prop_assert_eq!(pack::decode::<Map<u64, TextBuf>>(&body, &info), Ok(map));

        let info = TypeInfo::of::<Option<u32>>(LATEST);
        let body = message(&option, &info, literal);
        prop_assert_eq!(pack::decode::<Option<u32>>(&body, &info), Ok(option));

        let result = result.map_err(ErrorCode);
        let info = TypeInfo::of::<Expected<bool>>(LATEST);
        let body = message(&result, &info, literal);
        prop_assert_eq!(pack::decode::<Expected<bool>>(&body, &info), Ok(result));
    }
}
