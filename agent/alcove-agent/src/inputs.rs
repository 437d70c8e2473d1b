//! Standard input that its clients name: how much of each was taken, so that one whose connection broke can go on with it
//! over another.

use crate::slab::Key;

/// Most names that are remembered of inputs without a connection.
const MAX_REMEMBERED: usize = 64;

struct Input {
    name: String,
    taken: u64,
    /// Where it comes from now.
    connection: Option<Key>,
}

/// The named inputs of one command, the one used last at the end.
#[derive(Default)]
pub struct Inputs {
    inputs: Vec<Input>,
    /// A name that is not here may be one of those that were forgotten.
    forgotten: bool,
}

impl Inputs {
    /// From now on the input of that name comes from this connection and from no other. Returns how much of it was taken;
    /// None when that may have been forgotten.
    pub fn join(&mut self, name: &str, connection: Key) -> Option<u64> {
        self.leave(connection);
        let known = self.inputs.iter().position(|input| input.name == name).map(|index| self.inputs.remove(index));
        let told = known.as_ref().map(|input| input.taken).or((!self.forgotten).then_some(0));
        let taken = known.map_or(0, |input| input.taken);
        self.inputs.push(Input { name: name.to_owned(), taken, connection: Some(connection) });
        let idle = self.inputs.iter().filter(|input| input.connection.is_none()).count();
        if idle > MAX_REMEMBERED {
            if let Some(oldest) = self.inputs.iter().position(|input| input.connection.is_none()) {
                self.inputs.remove(oldest);
                self.forgotten = true;
            }
        }
        told
    }

    /// Whether anything is known of that input, or there is nothing to know.
    pub fn is_certain(&self, name: &str) -> bool {
        !self.forgotten || self.knows(name)
    }

    pub fn knows(&self, name: &str) -> bool {
        self.inputs.iter().any(|input| input.name == name)
    }

    /// How much was taken of the input of that name; None when that may have been forgotten.
    pub fn told(&self, name: &str) -> Option<u64> {
        let known = self.inputs.iter().find(|input| input.name == name).map(|input| input.taken);
        known.or((!self.forgotten).then_some(0))
    }

    pub fn leave(&mut self, connection: Key) {
        if let Some(input) = self.of(connection) {
            input.connection = None;
        }
    }

    pub fn took(&mut self, connection: Key, bytes: usize) {
        if let Some(input) = self.of(connection) {
            input.taken += bytes as u64;
        }
    }

    /// How much was taken of the input that comes from this connection; None when none does, or it does from another by now.
    pub fn taken(&self, connection: Key) -> Option<u64> {
        self.inputs.iter().find(|input| input.connection == Some(connection)).map(|input| input.taken)
    }

    fn of(&mut self, connection: Key) -> Option<&mut Input> {
        self.inputs.iter_mut().find(|input| input.connection == Some(connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    fn keys(count: usize) -> Vec<Key> {
        let mut slab = Slab::new();
        (0..count).map(|_| slab.insert(())).collect()
    }

    #[test]
    fn an_input_goes_on_over_another_connection_and_the_earlier_one_is_out() {
        let keys = keys(2);
        let mut inputs = Inputs::default();
        assert_eq!(inputs.join("a", keys[0]), Some(0));
        inputs.took(keys[0], 5);
        assert_eq!(inputs.join("a", keys[1]), Some(5));
        assert_eq!(inputs.taken(keys[0]), None);
        inputs.took(keys[0], 7);
        assert_eq!(inputs.taken(keys[1]), Some(5));
        inputs.leave(keys[1]);
        assert!(inputs.knows("a"));
    }

    #[test]
    fn what_was_forgotten_is_not_taken_for_new() {
        let keys = keys(MAX_REMEMBERED + 3);
        let mut inputs = Inputs::default();
        for (index, key) in keys.iter().enumerate() {
            inputs.join(&index.to_string(), *key);
            if index > 0 {
                inputs.leave(*key);
            }
        }
        assert!(inputs.knows("0"), "one with a connection is not forgotten");
        assert!(!inputs.knows("1"));
        assert!(!inputs.is_certain("1"));
        assert_eq!((inputs.told("0"), inputs.told("1")), (Some(0), None));
        assert_eq!(inputs.join("1", keys[1]), None);
        assert_eq!(inputs.join("3", keys[3]), Some(0));
    }
}
