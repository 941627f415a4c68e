//! Blocking queries of many tasks against a stand-in for Consul: shared answers, outages, lost data.

use super::*;

/// A Consul with the agent's token for all tasks, unless they have their own.
struct OfConsul(World);

impl OfConsul {
    fn new() -> Self {
        let peer = Peer::Consul("default".to_owned());
        Self(World::with_peer(peer, Following::default()))
    }

    async fn read(&self, number: u8, token: &str) -> Result<Answer, String> {
        self.read_after(number, token, 0).await
    }

    /// The same for a task whose last outputs have data with this index.
    async fn read_after(&self, number: u8, token: &str, recalled: u64) -> Result<Answer, String> {
        let data = key("a");
        self.0.watches.add(task(number), &data, Wait::NONE);
        let token = AccessToken::new(token);
        let reader = ServerReader { key: task(number), task: "main", token: &token, recalled };
        self.0.servers.read(&data, reader).await
    }
}

fn key(path: &str) -> Data {
    let query = Query::Consul { function: "key", arguments: vec![path.to_owned()] };
    let [namespace, partition] = [const { String::new() }; 2];
    Data { origin: Origin::Consul { cluster: "default".to_owned(), namespace, partition }, query }
}

#[tokio::test(start_paused = true)]
async fn tasks_with_one_token_share_the_answers_of_a_consul() {
    let consul = OfConsul::new();
    let fake = Arc::clone(&consul.0.fake);
    fake.put(11);
    for number in 0..200 {
        assert!(consul.read(number, "").await.is_ok());
    }
    assert!(consul.read(200, "own").await.is_ok());
    consul.0.quiet(1).await;
    assert_eq!((fake.blocking(), fake.count(|asked| asked.newer == Newer::Now)), (1, 2));
    fake.put(12);
    assert_eq!(consul.0.due(1).await.len(), 201);
    for number in 0..200 {
        let Ok(Answer::Variable(found)) = consul.read(number, "").await else { panic!("no answer") };
        assert_eq!(found.meta.modify_index, 12);
    }
    assert_eq!(fake.count(|asked| asked.newer == Newer::Now), 2, "the blocking query has brought the answer");
    assert!(consul.read(200, "own").await.is_ok());
    assert_eq!(fake.count(|asked| asked.newer == Newer::Now), 3, "a token reads for itself");
}

/// An outage of Consul was shown nowhere as long as nobody read.
#[tokio::test(start_paused = true)]
async fn a_long_outage_of_consul_reaches_its_users_and_its_end_too() {
    let consul = OfConsul::new();
    consul.0.fake.put(11);
    consul.read(1, "").await.unwrap();
    consul.0.fake.change(|state| state.is_away = true);
    consul.0.quiet(20).await;
    assert_eq!(consul.0.due(200).await, tasks([1]));
    let why = consul.read(1, "").await.err().unwrap();
    assert!(why.starts_with("Consul cannot be reached since 2"), "{why}");
    consul.0.quiet(600).await;
    consul.0.fake.change(|state| state.is_away = false);
    assert_eq!(consul.0.due(130).await, tasks([1]));
    assert!(consul.read(1, "").await.is_ok());
    consul.0.quiet(600).await;
}

/// A Consul that was wiped has rendered defaults and empty lists, and tasks restarted with them.
#[tokio::test(start_paused = true)]
async fn a_consul_that_has_lost_its_data_takes_nothing_from_tasks_for_some_time() {
    let consul = OfConsul::new();
    let fake = Arc::clone(&consul.0.fake);
    fake.put(100);
    consul.read(1, "").await.unwrap();
    let wipe = async || {
        fake.change(|state| state.is_away = true);
        consul.0.quiet(5).await;
        fake.change(|state| (state.is_away, state.index, state.variable) = (false, 5, None));
    };
    wipe().await;
    let why = {
        consul.0.due(60).await;
        consul.read(1, "").await.err().unwrap()
    };
    assert!(why.contains("may have lost its data"), "{why}");
    // It is restored.
    fake.put(7);
    consul.0.due(200).await;
    assert!(matches!(consul.read(1, "").await, Ok(Answer::Variable(_))));
    // For the second time nobody restores it.
    wipe().await;
    let mut answer = consul.read(1, "").await;
    for _ in 0..20 {
        consul.0.due(60).await;
        answer = consul.read(1, "").await;
    }
    assert!(matches!(answer, Ok(Answer::Absent)));
}

/// An agent that was restarted meanwhile rendered defaults at once.
#[tokio::test(start_paused = true)]
async fn the_next_agent_finds_out_that_a_consul_has_lost_its_data() {
    let consul = OfConsul::new();
    let fake = Arc::clone(&consul.0.fake);
    fake.change(|state| (state.index, state.variable) = (5, None));
    let why = consul.read_after(1, "", 100).await.err().unwrap();
    assert!(why.contains("may have lost its data"), "{why}");
    // The watch does not let it through either.
    consul.0.quiet(20).await;
    assert!(consul.read_after(1, "", 100).await.is_err());
    fake.put(7);
    consul.0.due(60).await;
    assert!(matches!(consul.read_after(1, "", 100).await, Ok(Answer::Variable(_))));
    // What is deleted from then on is deleted.
    fake.change(|state| (state.index, state.variable) = (8, None));
    consul.0.due(60).await;
    assert!(matches!(consul.read_after(1, "", 100).await, Ok(Answer::Absent)));
}
