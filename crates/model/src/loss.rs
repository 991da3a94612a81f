//! What becomes of a reservation when one of its nodes goes away.

use serde::{Deserialize, Serialize};

/// What becomes of a reservation when one of its nodes goes away. In either case the rest of it is
/// given back, and watchers are told what could be had instead.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum OnLoss {
    /// Its owner may have it moved.
    #[default]
    Offer,
    /// It is moved: the same is asked for again on other nodes, for the time that is left.
    Move,
}

// Ledgers have what it was called before.
crate::named!(OnLoss, "on_loss", either: Offer "offer" | "tell", Move "move");

crate::as_text!(OnLoss);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_read_back_and_others_are_refused() {
        for one in OnLoss::ALL {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
        assert_eq!("tell".parse(), Ok(OnLoss::Offer));
        let error = "stay".parse::<OnLoss>().unwrap_err().to_string();
        assert!(error.contains("on_loss: \"stay\"") && error.contains("offer or move"), "{error}");
    }
}
