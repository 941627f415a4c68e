//! Images of containers, without an engine.
//!
//! In: names of images as people write them, files with credentials. Out: registry, repository, tag and digest; credentials.
//!
//! | part | contents |
//! | --- | --- |
//! | `reference` | names of images |
//! | `credentials` | credentials of registries |

pub mod credentials;
mod reference;

pub use reference::{DOCKER_HUB, Reference, ReferenceError};
