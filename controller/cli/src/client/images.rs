//! Requests to the store of images of a node.

use std::{fs::File, time::Duration};

use futures_util::Stream;
use herdlet_api_types::{
    driver::ImageView,
    images::{
        DamagedLayers, ImagePrune, ImagePull, ImageVerify, PruneReport, PullStep, StoreCheck, StoredImage,
    },
};
use reqwest::{Body, Method, RequestBuilder};
use serde::de::DeserializeOwned;

use super::{Client, ClientError, Effect, Result, lines, understood};

/// An archive is sent and unpacked, or all images are read, before the answer begins.
const WORK_MAX: Duration = Duration::from_secs(60 * 60);

impl Client {
    /// Images that tasks use or have used.
    pub async fn images(&self) -> Result<Vec<ImageView>> {
        self.get("/v1/herdlet/images").await
    }

    /// Pulls an image, and returns the steps. A stream that is dropped stops the pull.
    pub async fn pull_image(
        &self,
        image: &str,
    ) -> Result<impl Stream<Item = Result<PullStep>> + Unpin + use<>> {
        let order = ImagePull { image: image.to_owned() };
        let answer = self.send(self.to(Method::PUT, "/v1/herdlet/images/pull").json(&order)).await?;
        Ok(Box::pin(lines::parsed(answer.bytes_stream())))
    }

    /// Loads the images of an archive.
    pub async fn load_images(&self, archive: File) -> Result<Vec<StoredImage>> {
        let body = Body::from(tokio::fs::File::from_std(archive));
        self.work(self.to(Method::PUT, "/v1/herdlet/images/load").body(body), Effect::Open).await
    }

    /// Removes images that no task uses.
    pub async fn prune_images(&self, order: &ImagePrune) -> Result<PruneReport> {
        let effect = if order.dry_run { Effect::None } else { Effect::Open };
        self.work(self.to(Method::PUT, "/v1/herdlet/images/prune").json(order), effect).await
    }

    /// Compares all layers with what was unpacked.
    pub async fn verify_images(&self, damaged: DamagedLayers) -> Result<StoreCheck> {
        let effect = match damaged {
            DamagedLayers::Report => Effect::None,
            DamagedLayers::Remove => Effect::Open,
        };
        let order = ImageVerify { damaged };
        self.work(self.to(Method::PUT, "/v1/herdlet/images/verify").json(&order), effect).await
    }

    /// A request whose answer begins when the work is done.
    async fn work<T: DeserializeOwned>(&self, request: RequestBuilder, effect: Effect) -> Result<T> {
        let request = request.build().map_err(ClientError::Setup)?;
        understood(self.execute_within(request, WORK_MAX).await?, effect).await
    }
}
