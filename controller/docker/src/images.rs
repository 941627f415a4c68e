//! Images that an engine has: finds one, and loads an archive.
//!
//! In: an engine, an image's name, an archive. Out: the engine's record of the image.

use std::fs::File;

use bollard::{Docker, query_parameters::ImportImageOptions};
use futures_util::StreamExt as _;

use crate::failure::{self, Meaning};

/// An image that is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LocalImage {
    pub(crate) id: String,
    /// Its names with tags.
    pub(crate) names: Vec<String>,
    /// Its content: the digest in its registry if it has one, otherwise its id.
    pub(crate) digest: String,
    pub(crate) size_bytes: u64,
}

/// Finds an image of the engine.
///
/// # Errors
/// The engine's error; an image that does not exist is none.
pub(crate) async fn local(client: &Docker, name: &str) -> Result<Option<LocalImage>, bollard::errors::Error> {
    match client.inspect_image(name).await {
        Ok(found) => {
            let of_registry = found
                .repo_digests
                .into_iter()
                .flatten()
                .find_map(|known| known.split_once('@').map(|(_, digest)| digest.to_owned()));
            let size_bytes = found.size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
            let id = found.id.unwrap_or_default();
            let mut names = found.repo_tags.unwrap_or_default();
            names.retain(|name| !name.contains("<none>"));
            let digest = of_registry.unwrap_or_else(|| id.clone());
            Ok(Some(LocalImage { id, names, digest, size_bytes }))
        }
        Err(error) if failure::meaning(&error) == Meaning::Missing => Ok(None),
        Err(error) => Err(error),
    }
}

/// Loads an archive with images.
///
/// # Errors
/// The engine's sentence.
pub(crate) async fn load(client: &Docker, archive: File) -> Result<(), String> {
    let pieces = tokio_util::io::ReaderStream::new(tokio::fs::File::from_std(archive));
    let body = bollard::body_try_stream(pieces);
    let mut answers = std::pin::pin!(client.import_image(
        ImportImageOptions { quiet: true, ..Default::default() },
        body,
        None
    ));
    while let Some(answer) = answers.next().await {
        let answer = answer.map_err(|error| failure::sentence(&error))?;
        if let Some(message) = answer.error_detail.and_then(|detail| detail.message) {
            return Err(message);
        }
    }
    Ok(())
}
