//! What two ends tell each other of where they are (pure): an address of their library, and behind it what shows that it is
//! whole. Libraries are given nothing else: UCX is not even told how long an address is, and believes what it says of itself.

use super::Library;
use crate::transport::Broken;

/// The longest address that an end has: UCX names every device that leads to it.
pub const ADDRESS_MOST: usize = 16 << 10;
/// Bytes behind it: the first of a digest of it and of its library's name.
const CHECK: usize = 8;
/// Bytes of the longest that is told.
pub const TOLD_MOST: usize = ADDRESS_MOST + CHECK;

/// What the other end is told, if `address` is that of this one.
pub fn told(library: Library, mut address: Vec<u8>) -> Vec<u8> {
    let check = check(library, &address);
    address.extend_from_slice(&check);
    address
}

/// The address that the other end has told.
///
/// # Errors
/// If it is not what an end of this library tells, whole.
pub fn heard(library: Library, told: &[u8]) -> Result<&[u8], Broken> {
    let is_whole = |(address, said): &(&[u8], &[u8; CHECK])| {
        (1..=ADDRESS_MOST).contains(&address.len()) && **said == check(library, address)
    };
    let parts = told.split_last_chunk::<CHECK>().filter(is_whole);
    parts.map(|(address, _)| address).ok_or_else(|| {
        let (name, length) = (library.name(), told.len());
        Broken::Library(format!("{name}: the other end told {length} bytes that are no address"))
    })
}

fn check(library: Library, address: &[u8]) -> [u8; CHECK] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(library.name().as_bytes()).update(address);
    let mut check = [0; CHECK];
    hasher.finalize_xof().fill(&mut check);
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIBRARY: Library = Library::Ucx;

    fn is_refused(library: Library, told: &[u8]) -> bool {
        matches!(heard(library, told), Err(Broken::Library(why)) if why.contains("no address"))
    }

    proptest! {
        /// Cut anywhere, longer, or another in one bit, it does not get to the library.
        #[test]
        fn only_what_an_end_has_told_is_an_address(
            address in prop::collection::vec(any::<u8>(), 1..300),
            at in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let told = told(LIBRARY, address.clone());
            prop_assert!(told.len() <= TOLD_MOST);
            prop_assert_eq!(heard(LIBRARY, &told), Ok(&address[..]));
            prop_assert!(is_refused(Library::Libfabric, &told), "of another library");
            let at = at.index(told.len());
            prop_assert!(is_refused(LIBRARY, &told[..at]));
            prop_assert!(is_refused(LIBRARY, &[told.as_slice(), &[0]].concat()));
            let mut other = told;
            other[at] ^= 1 << bit;
            prop_assert!(is_refused(LIBRARY, &other));
        }
    }

    #[test]
    fn an_address_has_a_length() {
        assert!(is_refused(LIBRARY, &[]) && is_refused(LIBRARY, &told(LIBRARY, Vec::new())));
        let longest = told(LIBRARY, vec![7; ADDRESS_MOST]);
        assert_eq!(longest.len(), TOLD_MOST);
        assert!(heard(LIBRARY, &longest).is_ok());
        assert!(is_refused(LIBRARY, &told(LIBRARY, vec![7; ADDRESS_MOST + 1])));
    }
}
