//! Runs stories one after the other with one program's servers.
//!
//! In: chapters, each with an environment and its stories. Out: a line for each story, and the number that
//! passed.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use super::{
    cluster::StockCluster,
    program::{Program, Version},
};

/// The function of a story.
pub type Tell = fn(&mut StockCluster);

#[derive(Debug, Clone, Copy)]
pub struct Story {
    /// The claim that the story tests.
    pub title: &'static str,
    /// The first release with the feature.
    pub since: Version,
    /// The first release without the feature.
    pub until: Version,
    pub tell: Tell,
}

/// Returns a story for every release.
pub const fn story(title: &'static str, tell: Tell) -> Story {
    since(1, 1, title, tell)
}

/// Returns a story for releases from this one on.
pub const fn since(major: u32, minor: u32, title: &'static str, tell: Tell) -> Story {
    Story { title, since: Version(major, minor, 0), until: Version(u32::MAX, 0, 0), tell }
}

impl Story {
    /// Limits a story to releases before this one.
    pub const fn until(self, major: u32, minor: u32) -> Self {
        Self { until: Version(major, minor, 0), ..self }
    }

    fn is_of(&self, version: Version) -> bool {
        self.since <= version && version < self.until
    }
}

/// Stories that share an environment.
#[derive(Debug, Clone, Copy)]
pub struct Chapter {
    /// The name of the environment.
    pub title: &'static str,
    /// Creates the environment; `None` if the program can't provide it.
    pub ground: fn(&Program) -> Option<StockCluster>,
    /// The stories. None of them leaves jobs to the next one.
    pub stories: &'static [Story],
}

/// The numbers of stories.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    pub passed: u32,
    pub failed: u32,
}

/// Runs the stories whose title contains `only` with `program`.
pub fn tell(program: &Program, chapters: &[Chapter], only: &str) -> Outcome {
    panic::set_hook(Box::new(|broken| {
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = broken.to_string();
    }));
    let mut outcome = Outcome::default();
    for chapter in chapters {
        let wanted: Vec<&Story> = chapter.stories.iter().filter(|story| story.title.contains(only)).collect();
        let (here, others): (Vec<&Story>, Vec<&Story>) =
            wanted.into_iter().partition(|story| story.is_of(program.version));
        if !here.is_empty() {
            chapter.tell(program, &here, &mut outcome);
        }
        for story in others {
            let when =
                if program.version < story.since { ("from", story.since) } else { ("before", story.until) };
            println!("  not in this version    {} ({} {})", story.title, when.0, when.1);
        }
    }
    drop(panic::take_hook());
    println!("{}: {} passed, {} failed", program.version, outcome.passed, outcome.failed);
    outcome
}

/// The message of the last panic, with its location.
static LAST: Mutex<String> = Mutex::new(String::new());

impl Chapter {
    fn tell(&self, program: &Program, stories: &[&Story], outcome: &mut Outcome) {
        println!("{} {}", program.version, self.title);
        let began = Instant::now();
        let mut ground = match caught(|| (self.ground)(program)) {
            Ok(Some(ground)) => ground,
            Ok(None) => {
                for story in stories {
                    println!("  not in this program    {}", story.title);
                }
                return;
            }
            Err(words) => {
                outcome.failed += u32::try_from(stories.len()).unwrap_or(u32::MAX);
                println!(
                    "  failed {:6.1} s  the environment did not start, so {} stories did not run: {words}",
                    began.elapsed().as_secs_f32(),
                    stories.len()
                );
                return;
            }
        };
        for story in stories {
            let began = Instant::now();
            let result = caught(|| (story.tell)(&mut ground))
                .and_then(|()| caught(|| ground.validate_jobs()))
                .and_then(|()| caught(|| ground.clear()));
            let took = began.elapsed().as_secs_f32();
            match result {
                Ok(()) => {
                    outcome.passed += 1;
                    println!("  ok     {took:6.1} s  {}", story.title);
                }
                Err(words) => {
                    outcome.failed += 1;
                    println!("  failed {took:6.1} s  {}: {words}\n{}", story.title, ground.logs());
                    if let Err(words) = caught(|| ground.mend()) {
                        println!("  failed to clean up: {words}");
                    }
                }
            }
        }
        if let Err(words) = caught(|| ground.finish()) {
            outcome.failed += 1;
            println!("  failed           end of the environment: {words}");
        }
    }
}

fn caught<T>(tell: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(tell)).map_err(|_: Box<dyn Any + Send>| {
        std::mem::take(&mut *LAST.lock().unwrap_or_else(PoisonError::into_inner))
    })
}
