//! A store whose keys are never mistaken for those of an earlier occupant of the same place.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub index: u32,
    pub generation: u32,
}

pub struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub fn insert(&mut self, item: T) -> Key {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            place.1 = Some(item);
            return Key { index, generation: place.0 };
        }
        self.places.push((0, Some(item)));
        Key { index: self.places.len() as u32 - 1, generation: 0 }
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        self.places.get(key.index as usize).filter(|place| place.0 == key.generation)?.1.as_ref()
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.places.get_mut(key.index as usize).filter(|place| place.0 == key.generation)?.1.as_mut()
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index as usize).filter(|place| place.0 == key.generation)?;
        let item = place.1.take()?;
        place.0 = place.0.wrapping_add(1);
        self.free.push(key.index);
        Some(item)
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, (generation, item))| {
            Some((Key { index: index as u32, generation: *generation }, item.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_finds_nothing_in_a_place_used_again() {
        let mut slab = Slab::new();
        let old = slab.insert("old");
        assert_eq!(slab.remove(old), Some("old"));
        let new = slab.insert("new");
        assert_eq!(new.index, old.index);
        assert_eq!((slab.get(old), slab.get(new), slab.len()), (None, Some(&"new"), 1));
        assert_eq!(slab.remove(old), None);
    }
}
