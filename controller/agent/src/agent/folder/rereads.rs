//! Requests to read a folder again although the kernel has reported no change: for file systems that report none, and for callers
//! that have just changed a file.
//!
//! In: requests. Out: for each of them, that a read has begun after it and has ended.

use tokio::sync::watch;

/// Requests to read a folder again.
#[derive(Debug, Default)]
pub struct Rereads {
    asked: watch::Sender<u64>,
    /// The last request before the last read.
    answered: watch::Sender<u64>,
}

impl Rereads {
    /// Asks to read the folder again.
    pub fn ask(&self) {
        self.asked.send_modify(|asked| *asked += 1);
    }

    /// Waits until the folder was read as it is now, and its jobs were applied, or could not be.
    pub async fn read_again(&self) {
        self.ask();
        // A request of another caller that came after it is as good.
        let number = *self.asked.borrow();
        // An error means that the agent ends.
        let _ = self.answered.subscribe().wait_for(|answered| *answered >= number).await;
    }

    /// The number of requests.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.asked.subscribe()
    }

    /// The folder was read after this request.
    pub(super) fn answer(&self, number: u64) {
        self.answered.send_replace(number);
    }
}
