//! The only source of random numbers for identities.

use rand::RngCore;

/// 128 random bits.
pub(crate) fn entropy() -> u128 {
    let mut bytes = [0; 16];
    rand::rng().fill_bytes(&mut bytes);
    u128::from_le_bytes(bytes)
}
