//! The meaning of errors, and the options of requests.

use herdlet_render::AccessToken;
use herdlet_rpc::error::ServerError;

use super::*;

#[test]
fn errors_say_what_helps() {
    let of_server = |text: &str| meaning(ServerError::new(text).into(), VARIABLES);
    assert!(matches!(of_server("rpc error: No cluster leader"), RegionError::Away(_)));
    assert!(matches!(of_server("rpc error: EOF"), RegionError::Away(_)));
    assert!(matches!(meaning(CallError::NoServers, VARIABLES), RegionError::Away(_)));
    assert!(matches!(meaning(CallError::Late(WITHIN), VARIABLES), RegionError::Away(_)));
    assert!(matches!(of_server("rpc error: Permission denied"), RegionError::Denied(_)));
    assert!(matches!(of_server("ACL token not found"), RegionError::Denied(_)));
    assert!(matches!(of_server("No path to region"), RegionError::Failed(_)));
    let old = of_server("rpc: can't find service Variables.Read");
    assert_eq!(old, RegionError::TooOld("1.4"));
    assert!(old.to_string().contains("Nomad 1.4 or later"), "{old}");
}

/// With its own token, the node would read every variable for a task.
#[test]
fn requests_have_the_token_of_the_task_and_the_namespace() {
    let query = |region: &str| Query::NomadVariable {
        path: "a".to_owned(),
        namespace: "prod".to_owned(),
        region: region.to_owned(),
    };
    let request = |region, token| RegionRequest {
        query: query(region),
        namespace: "prod".to_owned(),
        partition: String::new(),
        token,
        newer: Newer::Now,
    };
    let of_node = QueryOptions {
        region: "global".to_owned(),
        auth_token: Secret::from("of the node"),
        ..QueryOptions::default()
    };
    let sent = with_options(of_node.clone(), &request("", AccessToken::new("of the task")));
    assert_eq!(
        (&*sent.region, &*sent.namespace, sent.auth_token.reveal()),
        ("global", "prod", "of the task")
    );
    let sent = with_options(of_node, &request("eu", AccessToken::default()));
    assert_eq!((&*sent.region, sent.auth_token.reveal()), ("eu", ""));
}
