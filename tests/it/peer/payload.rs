//! Reproducible object contents, equal to those of tests/peers/payload.py.

/// The first `size` bytes of the object `seed`. Word i is splitmix64(seed + i), little-endian.
pub fn payload(seed: u64, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(size.next_multiple_of(8));
    for i in 0..size.div_ceil(8) as u64 {
        let mut z = (i.wrapping_add(seed).wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        out.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    out.truncate(size);
    out
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn rust_and_python_generate_the_same_bytes() {
    let code = "from payload import payload; import sys; sys.stdout.buffer.write(payload(77, 100003))";
    let out = super::wheel::wheel().python().args(["-c", code]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.stdout == payload(77, 100_003));
}
