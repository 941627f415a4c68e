//! Jobs that live as long as the connection of their client.

use std::collections::BTreeMap;

use herdlet_agent::{planner::Input, requests::Requests};
use herdlet_api_types::job::{Job, RUN_OF};
use herdlet_manifest::fixture::{job, job_view};
use herdlet_plan::event::Command;
use herdlet_runtime::Inbox;

use super::{ApiFixture, Limits, PATIENCE};
use std::sync::Arc;

fn one_off() -> Job {
    Job {
        labels: BTreeMap::from([(RUN_OF.to_owned(), "web".to_owned())]),
        ..Job::clone(&job("web-run-1", "g", "t"))
    }
}

/// Any job was deleted, also one with the same id that was created later.
#[tokio::test]
async fn only_a_job_for_one_command_can_be_held() {
    let agent = ApiFixture::new();
    agent.show(5, &[job_view(&job("web", "g", "t"), 0), job_view(&Arc::new(one_off()), 0)], &[]);
    let _client = agent.unix(Limits::default()).await;
    let held = async |id: &str| {
        let request = agent.http().put(format!("http://localhost/v1/herdlet/job/{id}/hold"));
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!((held("web").await, held("web-run-1").await, held("later").await), (400, 200, 200));
}

/// A client that was killed between the creation of its job and the request that holds it left the job behind.
#[tokio::test]
async fn a_job_whose_client_is_gone_is_deleted_even_if_it_appears_later() {
    let mut agent = ApiFixture::new();
    let (inbox, mut arrivals) = Inbox::with_capacity(4);
    let requests = Requests::to(inbox, agent.store.subscribe(), agent.dir.path().join("state"));
    Arc::get_mut(&mut agent.shared).unwrap().requests = requests;
    let _client = agent.unix(Limits::default()).await;
    let held = agent.http().put("http://localhost/v1/herdlet/job/web-run-1/hold").send().await.unwrap();
    assert_eq!(held.status().as_u16(), 200);
    drop(held);
    agent.show(5, &[job_view(&Arc::new(one_off()), 3)], &[]);
    let deleted = async {
        loop {
            match arrivals.take() {
                Some(Input::Request(Command::DeleteVersion { job, version }, _)) => {
                    return (job.id.to_string(), version);
                }
                Some(_) | None => tokio::task::yield_now().await,
            }
        }
    };
    let deleted = tokio::time::timeout(PATIENCE, deleted).await.unwrap();
    assert_eq!(deleted, ("web-run-1".to_owned(), 3));
}
