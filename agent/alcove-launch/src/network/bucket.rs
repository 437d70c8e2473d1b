//! How much of something may happen: so much at once, and so much more with time.

pub struct Bucket {
    left: f64,
    size: f64,
    per_ms: f64,
    at_ms: u64,
}

impl Bucket {
    pub fn new(size: f64, per_second: f64) -> Self {
        Self { left: size, size, per_ms: per_second / 1_000.0, at_ms: 0 }
    }

    fn fill(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.at_ms) as f64;
        self.left = (self.left + passed * self.per_ms).min(self.size);
        self.at_ms = now_ms;
    }

    /// @returns false, and takes nothing, when there is not enough.
    pub fn take(&mut self, amount: f64, now_ms: u64) -> bool {
        self.fill(now_ms);
        let enough = self.left >= amount;
        if enough {
            self.left -= amount;
        }
        enough
    }

    /// Takes what has happened already; what is missing then has to come back first.
    pub fn owe(&mut self, amount: f64, now_ms: u64) {
        self.fill(now_ms);
        self.left -= amount;
    }

    /// Milliseconds until there is something again; 0: there is.
    pub fn wait_ms(&mut self, now_ms: u64) -> u64 {
        self.fill(now_ms);
        if self.left > 0.0 { 0 } else { (-self.left / self.per_ms).ceil() as u64 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::Bucket;

    #[test]
    fn what_was_taken_comes_back_with_time_and_never_more_than_its_size() {
        let mut bucket = Bucket::new(2.0, 10.0);
        assert_eq!([0, 0, 0].map(|now| bucket.take(1.0, now)), [true, true, false]);
        assert!(!bucket.take(1.0, 99));
        assert!(bucket.take(1.0, 100));
        assert_eq!([9_000; 3].map(|now| bucket.take(1.0, now)), [true, true, false]);
    }

    #[test]
    fn debts_are_waited_for() {
        let mut bucket = Bucket::new(1_000.0, 1_000.0);
        bucket.owe(1_500.0, 0);
        let wait = bucket.wait_ms(0);
        assert!((500..=502).contains(&wait), "{wait}");
        assert_eq!(bucket.wait_ms(wait), 0);
    }
}
