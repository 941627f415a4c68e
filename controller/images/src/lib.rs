//! Images of containers, without an engine.
//!
//! In: names of images as people write them, files with credentials, hosts of registries. Out: what the documents of an image say,
//! checked and within bounds; its layers in files. Nobody uses documents and registries yet. A registry and an archive are strangers: nothing that they send is
//! believed before its digest and its size agree with the document that led to it.
//!
//! | part | contents |
//! | --- | --- |
//! | `reference` | names of images |
//! | `digest`, `media`, `platform` | digests, media types, platforms |
//! | `document`, `config` | indexes and manifests; what an image says about its containers |
//! | `credentials` | credentials of registries |
//! | `registry`, `progress` | fetching images and their layers from registries |

pub mod config;
pub mod credentials;
pub mod digest;
pub mod document;
pub mod media;
pub mod platform;
pub mod progress;
mod reference;
pub mod registry;

pub use reference::{DOCKER_HUB, Reference, ReferenceError};
