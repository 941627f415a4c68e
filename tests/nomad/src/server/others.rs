//! What is only taken, or answered as a test has said.

use herdlet_nomad::wire::registration::GenericResponse;
use herdlet_rpc::{
    codec::Value,
    serve::{Call, answer},
};

use super::{Answer, Server};
use crate::cluster::lock;

/// As many requests of a method are kept.
const KEPT: usize = 1_000;

impl Server {
    /// What a test has said, if it has.
    pub(super) fn said(&self, call: &Call) -> Option<Answer> {
        let said = lock(&self.cluster.answers).get(&call.method).cloned()?;
        self.keep(call);
        Some(Ok(said))
    }

    /// `ServiceRegistration.*`: it is taken, and a test may look at it.
    pub(super) async fn service(&self, call: &Call) -> Answer {
        #[derive(serde::Deserialize, Default)]
        #[serde(default, rename_all = "PascalCase")]
        struct Any {
            region: String,
        }
        let Any { region } = call.arguments()?;
        self.led(&region).await?;
        self.keep(call);
        let index = self.cluster.write(crate::state::State::next);
        answer(&GenericResponse { index })
    }

    fn keep(&self, call: &Call) {
        if let Ok(request) = call.arguments::<Value>() {
            let mut asked = lock(&self.cluster.asked);
            let requests = asked.entry(call.method.clone()).or_default();
            if requests.len() < KEPT {
                requests.push(request);
            }
        }
    }
}
