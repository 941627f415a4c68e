//! Blocking queries of many tasks against stand-in servers, with paused time.

use std::collections::BTreeSet;

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_template::{Query, Variable, VariableMeta};
use tokio::task::JoinHandle;

use super::*;
use crate::watches::{Consumer, Wait, Watches};

mod consul;

/// Servers with one variable.
#[derive(Default)]
struct Fake {
    state: channel::Sender<State>,
    asked: Mutex<Vec<RegionRequest>>,
}

#[derive(Clone, Default)]
struct State {
    /// The index of the last change.
    index: u64,
    /// The variable's own index; `None` if it does not exist.
    variable: Option<u64>,
    is_away: bool,
    /// Tokens that are refused.
    refused: BTreeSet<String>,
    /// Servers that lag behind answer with this index.
    stale: Option<u64>,
    /// How long ago that server had contact with the leader.
    last_contact: Duration,
}

impl State {
    fn index(&self) -> u64 {
        self.variable.unwrap_or(self.index)
    }
}

impl Fake {
    fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    fn refuse(&self, token: &str) {
        self.change(|state| {
            state.refused.insert(token.to_owned());
        });
    }

    fn put(&self, index: u64) {
        self.change(|state| (state.index, state.variable) = (index, Some(index)));
    }

    fn count(&self, is_it: impl Fn(&RegionRequest) -> bool) -> usize {
        lock(&self.asked).iter().filter(|asked| is_it(asked)).count()
    }

    fn blocking(&self) -> usize {
        self.count(|asked| asked.newer != Newer::Now)
    }
}

struct Handle(Arc<Fake>);

impl Region for Handle {
    fn read(&self, request: RegionRequest) -> BoxFuture<'static, Result<RegionAnswer, RegionError>> {
        let fake = Arc::clone(&self.0);
        lock(&fake.asked).push(request.clone());
        async move {
            let mut state = fake.state.subscribe();
            let is_denied = |state: &State| state.refused.contains(request.token.reveal());
            if let Newer::Than { index, block } = request.newer {
                let is_over =
                    |state: &State| state.is_away || is_denied(state) || state.index() > index || index == 0;
                let _ = tokio::time::timeout(block, state.wait_for(is_over)).await;
            }
            let state = state.borrow().clone();
            if state.is_away {
                return Err(RegionError::Away("no server answers".to_owned()));
            }
            if is_denied(&state) {
                return Err(RegionError::Denied("Permission denied".to_owned()));
            }
            if let (Some(index), Newer::Than { .. }) = (state.stale, request.newer) {
                return Ok(RegionAnswer { index, answer: Answer::Absent, last_contact: state.last_contact });
            }
            let meta = |index| VariableMeta { modify_index: index, ..VariableMeta::default() };
            let variable = |index| Arc::new(Variable { meta: meta(index), items: BTreeMap::new() });
            let answer = state.variable.map_or(Answer::Absent, |index| Answer::Variable(variable(index)));
            let last_contact = state.last_contact;
            Ok(RegionAnswer { index: state.index(), answer, last_contact })
        }
        .boxed()
    }
}

struct World {
    fake: Arc<Fake>,
    servers: Arc<Servers>,
    watches: Arc<Watches>,
    following: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.following.abort();
    }
}

fn data(path: &str) -> Data {
    let namespace = "default".to_owned();
    let query =
        Query::NomadVariable { path: path.to_owned(), namespace: namespace.clone(), region: String::new() };
    Data { origin: Origin::Servers { namespace }, query }
}

fn task(number: u8) -> TaskKey {
    (AllocId::from_hash([number; 16]), 0, Consumer::Templates)
}

impl World {
    fn new() -> Self {
        Self::with(Following::default())
    }

    fn with(following: Following) -> Self {
        Self::with_peer(Peer::Servers, following)
    }

    fn with_peer(peer: Peer, following: Following) -> Self {
        let (fake, watches): (Arc<Fake>, Arc<Watches>) = Default::default();
        let servers = Arc::new(Servers::new(peer, following));
        fake.change(|state| state.index = 10);
        servers.join(Arc::new(Handle(Arc::clone(&fake))));
        let following = tokio::spawn({
            let (servers, watches) = (Arc::clone(&servers), Arc::clone(&watches));
            async move { servers.follow(&watches).await }
        });
        Self { fake, servers, watches, following }
    }

    /// Reads as the renderer does.
    async fn read(&self, number: u8, path: &str) -> Result<Answer, String> {
        let data = data(path);
        self.watches.add(task(number), &data, Wait::NONE);
        let token = AccessToken::new(&format!("token-{number}"));
        let reader = ServerReader { key: task(number), task: "main", token: &token, recalled: 0 };
        self.servers.read(&data, reader).await
    }

    fn forget(&self, number: u8) {
        self.watches.forget(task(number).0);
        self.servers.forget(task(number).0);
    }

    /// The tasks that are due within a time.
    async fn due(&self, within: u64) -> BTreeSet<TaskKey> {
        let due = tokio::time::timeout(Duration::from_secs(within), self.watches.due());
        due.await.unwrap_or_default()
    }

    async fn quiet(&self, seconds: u64) {
        assert_eq!(self.due(seconds).await, BTreeSet::new());
    }
}

fn tasks(numbers: impl IntoIterator<Item = u8>) -> BTreeSet<TaskKey> {
    numbers.into_iter().map(task).collect()
}

#[tokio::test(start_paused = true)]
async fn all_tasks_share_one_blocking_query_that_ends_with_the_last() {
    let world = World::new();
    world.fake.put(11);
    for number in 0..200 {
        assert!(matches!(world.read(number, "a").await, Ok(Answer::Variable(_))));
    }
    world.quiet(200).await;
    assert_eq!((world.fake.blocking(), world.fake.count(|asked| asked.newer == Newer::Now)), (1, 200));
    world.fake.put(12);
    assert_eq!(world.due(1).await.len(), 200);
    for number in 0..200 {
        world.forget(number);
    }
    world.quiet(10).await;
    let before = world.fake.blocking();
    world.fake.put(13);
    world.quiet(1_000).await;
    assert_eq!(world.fake.blocking(), before);
    assert!(lock(&world.servers.shared).is_empty() && lock(&world.servers.tokens).is_empty());
}

/// The index of a missing variable is that of all variables: most changes of it mean nothing.
#[tokio::test(start_paused = true)]
async fn other_variables_concern_nobody() {
    let world = World::new();
    assert!(matches!(world.read(1, "a").await, Ok(Answer::Absent)));
    for index in 20..40 {
        world.fake.change(|state| state.index = index);
        world.quiet(3).await;
    }
    let asked = world.fake.blocking();
    assert!((2..=40).contains(&asked), "{asked}");
    world.fake.put(50);
    assert_eq!(world.due(5).await, tasks([1]));
}

/// A change between the read of one task and the first blocking query was never noticed.
#[tokio::test(start_paused = true)]
async fn what_one_task_has_read_earlier_is_read_again() {
    let world = World::new();
    world.watches.add(task(2), &data("a"), Wait::NONE);
    world.fake.put(11);
    world.read(1, "a").await.unwrap();
    // The answer to task 2 is from before and arrives late.
    let late = RegionAnswer { index: 10, answer: Answer::Absent, last_contact: Duration::ZERO };
    world.servers.note(&data("a"), (&Ok(late), &AccessToken::default()));
    assert_eq!(world.due(5).await, tasks([1, 2]));
    world.read(2, "a").await.unwrap();
    world.quiet(600).await;
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_away_are_asked_by_the_watch_only() {
    let world = World::new();
    world.fake.put(11);
    world.read(1, "a").await.unwrap();
    world.fake.change(|state| state.is_away = true);
    world.quiet(600).await;
    let asked = world.fake.count(|_| true);
    assert!(asked < 40, "{asked} questions in ten minutes");
    let why = world.read(2, "a").await.err().unwrap();
    assert!(why.starts_with("servers cannot be reached since 2"), "{why}");
    assert!(why.ends_with("no server answers"), "{why}");
    for number in 3..100 {
        assert_eq!(world.read(number, "a").await.err().unwrap(), why, "the text stays the same");
    }
    assert!(world.fake.count(|_| true) <= asked + 2, "reads fail without a call");
    world.fake.change(|state| state.is_away = false);
    assert_eq!(world.due(125).await.len(), 99, "those that have read nothing, and those before");
    assert!(world.read(2, "a").await.is_ok());
    world.quiet(600).await;
}

#[tokio::test(start_paused = true)]
async fn return_of_servers_without_a_change_concerns_nobody() {
    let world = World::new();
    world.fake.put(11);
    world.read(1, "a").await.unwrap();
    world.fake.change(|state| state.is_away = true);
    world.quiet(100).await;
    world.fake.change(|state| state.is_away = false);
    world.quiet(600).await;
    world.fake.put(12);
    assert_eq!(world.due(5).await, tasks([1]));
}

#[tokio::test(start_paused = true)]
async fn refused_token_gives_way_to_that_of_another_task() {
    let world = World::new();
    world.fake.put(11);
    world.read(1, "a").await.unwrap();
    world.read(2, "a").await.unwrap();
    world.fake.refuse("token-1");
    world.quiet(600).await;
    world.fake.put(12);
    assert_eq!(world.due(5).await, tasks([1, 2]));
    let why = world.read(1, "a").await.err().unwrap();
    assert_eq!(why, r#"servers refuse a@default to task "main": Permission denied"#);
    world.quiet(600).await;
    // Nobody may read it any more: all learn it once, and again when they may.
    world.fake.refuse("token-2");
    assert_eq!(world.due(5).await, tasks([1, 2]));
    let before = world.fake.count(|_| true);
    world.quiet(1_200).await;
    let asked = world.fake.count(|_| true) - before;
    assert!(asked <= 2 * 21, "{asked} questions in twenty minutes");
    world.fake.change(|state| state.refused.clear());
    assert_eq!(world.due(125).await, tasks([1, 2]));
}

/// Servers that were restored from a snapshot have a lower index, for which a query would block until the time limit.
#[tokio::test(start_paused = true)]
async fn index_that_goes_back_is_confirmed_by_the_leader() {
    let world = World::new();
    world.fake.put(100);
    world.read(1, "a").await.unwrap();
    // A server that lags behind takes nothing back.
    world.fake.change(|state| state.stale = Some(50));
    world.quiet(900).await;
    world.fake.change(|state| state.stale = None);
    world.fake.put(40);
    assert_eq!(world.due(400).await, tasks([1]));
    world.read(1, "a").await.unwrap();
    world.quiet(600).await;
    world.fake.put(41);
    assert_eq!(world.due(5).await, tasks([1]), "from the new index on");
}

#[tokio::test(start_paused = true)]
async fn index_zero_does_not_become_a_hot_loop() {
    let world = World::new();
    world.fake.change(|state| state.index = 0);
    world.read(1, "a").await.unwrap();
    world.quiet(600).await;
    let asked = world.fake.count(|_| true);
    assert!(asked <= 10, "{asked} questions in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn more_data_than_queries_takes_turns() {
    let world = World::new();
    world.fake.put(11);
    for number in 0..=255 {
        world.read(number, &format!("path-{number}")).await.unwrap();
    }
    let busy = || watch::BLOCKING - world.servers.blocking.available_permits();
    world.quiet(5).await;
    assert_eq!(busy(), watch::BLOCKING);
    world.fake.put(12);
    let mut due = BTreeSet::new();
    while due.len() < 256 {
        let more = world.due(120).await;
        assert!(!more.is_empty(), "{} of 256 tasks are due", due.len());
        due.extend(more);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_before_the_node_has_joined() {
    let servers = Servers::new(Peer::Servers, Following::default());
    let token = AccessToken::new("secret");
    let reader = ServerReader { key: task(1), task: "main", token: &token, recalled: 0 };
    let why = servers.read(&data("a"), reader).await.err().unwrap();
    assert!(why.contains("has not joined"), "{why}");
    assert!(!format!("{token:?}").contains("secret"));
}

#[tokio::test(start_paused = true)]
async fn blocking_queries_and_pauses_last_as_long_as_configured() {
    let seconds = Duration::from_secs;
    let world = World::with(Following {
        block: seconds(20),
        retry_first: seconds(100),
        retry_longest: seconds(100),
        ..Following::default()
    });
    world.fake.put(11);
    world.read(1, "a").await.unwrap();
    world.quiet(600).await;
    let asked = world.fake.blocking();
    assert!((28..=31).contains(&asked), "{asked}: each blocks for 20 s, and a pause follows");
    world.fake.change(|state| state.is_away = true);
    let before = world.fake.count(|_| true);
    world.quiet(600).await;
    let asked = world.fake.count(|_| true) - before;
    assert!((3..=7).contains(&asked), "{asked}: each pause is 100 s to 200 s");
}

/// A server that has lost its leader blocks until the end of the query, and then gives the old answer.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_stale_is_confirmed_by_the_leader() {
    for (max_stale, leader) in [(Duration::from_secs(60), true), (Duration::from_secs(1_000), false)] {
        let world = World::with(Following { max_stale, ..Following::default() });
        world.fake.put(11);
        world.read(1, "a").await.unwrap();
        world.quiet(400).await;
        world.fake.change(|state| (state.stale, state.last_contact) = (Some(11), Duration::from_secs(90)));
        let now = |request: &RegionRequest| request.newer == Newer::Now;
        let before = world.fake.count(now);
        world.quiet(1_200).await;
        let asked = world.fake.count(now) - before;
        assert_eq!(asked > 0, leader, "{asked}");
        assert!(asked <= 6, "{asked}: once for each blocking query");
    }
}

#[test]
fn pauses_double_within_their_bounds() {
    let seconds = Duration::from_secs;
    let pauses = |first, longest| {
        let following = Following { retry_first: first, retry_longest: longest, ..Following::default() };
        [0, 1, 3, u32::MAX].map(|failures| following.retry(failures))
    };
    assert_eq!(pauses(seconds(1), seconds(60)), [1, 2, 8, 60].map(seconds));
    assert_eq!(pauses(seconds(9), seconds(5)), [5; 4].map(seconds));
    assert_eq!(pauses(seconds(1), Duration::ZERO), [1, 2, 8, 86_400].map(seconds), "no limit");
    assert_eq!(pauses(Duration::ZERO, seconds(1)), [100, 200, 800, 1_000].map(Duration::from_millis));
    assert_eq!(pauses(Duration::MAX, Duration::MAX), [86_400; 4].map(seconds));
}
