//! The API over real sockets, with a read model that the test fills and an inbox without a reader.

mod admission;
mod bodies;
mod bounds;
mod files;
mod hold;
mod lists;
mod placed;
mod reads;
mod services;
mod shapes;
mod stock;
mod streams;
mod task_api;
mod tls;
mod ui;
mod variables;

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::Router;
use herdlet_api_types::{
    UnixNanos,
    view::{AllocView, JobView},
};
use herdlet_cli::{Address, Client};
use herdlet_plan::turn::View;
use herdlet_runtime::{CommitIndex, Gate, Publisher, StoreHealth};
use herdlet_services::catalog::BuiltIn;
use tokio_util::sync::CancellationToken;

use super::{Limits, Listener, Token, Vitals, fixture::ApiFixture, metrics_router, router};

/// A test fails after this time: on an idle machine the step takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(180);

impl ApiFixture {
    async fn unix(&self, limits: Limits) -> Client {
        let listener = Listener::unix(&self.socket()).await.unwrap();
        self.serve(listener, router(Arc::clone(&self.shared)), None, limits);
        Client::new(Address::Unix(self.socket()), None).unwrap()
    }

    fn http(&self) -> reqwest::Client {
        reqwest::Client::builder().unix_socket(self.socket()).build().unwrap()
    }

    /// Status and body of a GET on the unix socket.
    async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.http().get(format!("http://localhost{path}")).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

#[tokio::test]
async fn requests_wait_for_restoration() {
    let mut agent = ApiFixture::new();
    let (opener, gate) = Gate::closed();
    Arc::get_mut(&mut agent.shared).unwrap().restored = gate;
    let _client = agent.unix(Limits::default()).await;
    assert_eq!(agent.get("/healthz").await.0, 200);
    let asked = agent.get("/v1/jobs");
    tokio::pin!(asked);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut asked).await.is_err());
    opener.open();
    assert_eq!(asked.await.0, 200);
}
