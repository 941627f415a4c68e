//! Jobs of servers in the local API: they are listed, and changes are refused.

use std::sync::Arc;

use herdlet_agent::overview::placed::{all_jobs, allow, job};
use herdlet_api_types::alloc::{Desired, ServerSide};
use herdlet_manifest::fixture;
use herdlet_plan::event::Command;

use super::ApiFixture;

#[tokio::test]
async fn jobs_of_servers_are_shown_and_refused() {
    let ground = ApiFixture::new();
    let (own, web) = (fixture::job("own", "g", "t"), fixture::job("web", "front", "httpd"));
    let mut alloc = fixture::alloc_view(&web, 0, 7);
    let server =
        ServerSide { modify_index: 70, create_index: 70, ..herdlet_api_types::fixture::server_side(&web) };
    Arc::make_mut(&mut alloc.spec).server = Some(server.into());
    ground.show(5, &[fixture::job_view(&own, 0)], &[alloc.clone()]);
    let model = &ground.shared.model;
    let all = all_jobs(model);
    let shown: Vec<_> = all.iter().map(|view| (&*view.key.id, view.placed, view.allocs.len())).collect();
    assert_eq!(shown, [("own", false, 0), ("web", true, 1)]);
    assert_eq!(job(model, &web.key()).unwrap().job, web);
    let refused = allow(model, &Command::Stop { job: web.key() }).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "job \"web\" belongs to the cluster, whose servers have placed it here; nothing was changed: use the cluster \
         instead: nomad job stop -namespace=default web"
    );
    assert!(allow(model, &Command::Apply { jobs: vec![(*web).clone()], volumes: Vec::new() }).is_err());
    assert_eq!(allow(model, &Command::Stop { job: own.key() }), Ok(()));
    // A job whose allocations the servers have stopped is no longer listed.
    Arc::make_mut(&mut alloc.spec).desired = Desired::Stop;
    ground.show(6, &[], &[alloc]);
    assert!(job(model, &web.key()).is_none());
}
