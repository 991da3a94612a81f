//! Owns how the two ends of a network connection know each other; never opens one, and never decides
//! what somebody may do.
//!
//! * [`identity`]: who a certificate speaks for (pure);
//! * [`certificate`]: what stands in one, and until when it is valid (pure); [`revoked`]: which were withdrawn (pure);
//! * [`tokens`]: tokens and the file with their digests (pure); [`token_file`]: that file on the disk;
//! * [`tls`]: the settings of both ends, made of files; [`untrusted`]: why one end does not trust the
//!   other, in words that say what to do;
//! * [`authority`]: a small certificate authority;
//! * [`endpoint`]: `HOST:PORT`; [`files`]: files that are secret, and those that changed; [`renewal`]: what was read
//!   of files, read again when they change; [`dates`]: times in certificates and files.
//!
//! A user's certificate names the user, a node's the node, and neither can be taken for the other:
//!
//! ```
//! use keeptime_credentials::identity::Identity;
//!
//! let node = Identity::Node("n1".parse()?);
//! assert_eq!(node.uri(), "keeptime:node:n1");
//! let user = Identity::from_uri("keeptime:user:n1").unwrap()?;
//! assert_ne!(user, node);
//! # Ok::<(), keeptime_model::Invalid>(())
//! ```
#![forbid(unsafe_code)]

pub mod authority;
pub mod certificate;
pub mod dates;
pub mod endpoint;
pub mod files;
pub mod identity;
pub mod renewal;
pub mod revoked;
pub mod tls;
pub mod token_file;
pub mod tokens;
pub mod untrusted;
