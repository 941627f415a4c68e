//! Images of containers, without an engine.
//!
//! In: names of images as people write them. Out: registry, repository, tag and digest.
//!
//! | part | contents |
//! | --- | --- |
//! | `reference` | names of images |

mod reference;

pub use reference::{DOCKER_HUB, Reference, ReferenceError};
