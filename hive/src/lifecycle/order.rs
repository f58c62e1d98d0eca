//! The order of start hooks: constraints of the graph, of the order within a constructor, and of tokens.

use std::any::TypeId;
use std::collections::{BTreeSet, HashMap};

/// A milestone of the start that hooks provide or wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Token(TypeId);

impl Token {
    pub(super) fn of<T: 'static>() -> Self {
        Token(TypeId::of::<T>())
    }
}

/// Additional dependencies of the start of a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Along {
    /// Waits for all hooks registered before.
    #[default]
    Registered,
    /// Has no additional dependencies.
    Parallel,
    /// As `Parallel`, but does not by itself require an order along the graph: the start of a job takes no time.
    Job,
}

/// The properties of a hook that decide its order.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The constructor that added it; hooks without one come after all that have one.
    pub(super) node: usize,
    pub(super) along: Along,
    /// Whether all hooks that it does not depend on wait for it.
    pub(super) first: bool,
    pub(super) brings: Vec<Token>,
    pub(super) awaits: Vec<Token>,
}

/// The dependencies between constructors, by node.
pub(crate) type Uses = Vec<Vec<usize>>;

/// Hooks with their dependencies. In addition to hooks there is a node for each constructor, reached when all its hooks
/// and those of all its dependencies have run, and one for each token.
#[derive(Clone)]
pub(super) struct Order {
    hooks: usize,
    /// The number of unmet dependencies of each node.
    waits: Vec<usize>,
    /// Its dependents.
    next: Vec<Vec<usize>>,
}

impl Order {
    pub(super) fn new(places: &[Place], uses: &Uses) -> Self {
        let hooks = places.len();
        let nodes = uses.len();
        let mut order = Order { hooks, waits: vec![0; hooks + nodes], next: vec![Vec::new(); hooks + nodes] };
        let mut first: Vec<usize> = (hooks..hooks + nodes).collect();
        let mut last: Vec<Option<usize>> = vec![None; nodes];
        for (hook, place) in places.iter().enumerate() {
            match last.get_mut(place.node).map(|last| last.replace(hook)) {
                Some(Some(before)) => order.follow(before, hook),
                Some(None) => first[place.node] = hook,
                None => (hooks..hooks + nodes).for_each(|node| order.follow(node, hook)),
            }
        }
        for (node, last) in last.iter().enumerate() {
            last.iter().for_each(|last| order.follow(*last, hooks + node));
        }
        for (node, used) in uses.iter().enumerate() {
            used.iter().for_each(|used| order.follow(hooks + used, first[node]));
        }
        let mut tokens: HashMap<Token, usize> = HashMap::new();
        for (hook, place) in places.iter().enumerate() {
            for token in &place.brings {
                let point = *tokens.entry(*token).or_insert_with(|| order.point());
                order.follow(hook, point);
            }
            for token in &place.awaits {
                let point = *tokens.entry(*token).or_insert_with(|| order.point());
                order.follow(point, hook);
            }
        }
        if places.iter().any(|place| place.first) {
            order.begin_with(places);
        }
        order
    }

    /// Makes all hooks wait for the first ones, except for dependencies of these.
    fn begin_with(&mut self, places: &[Place]) {
        let mut needs = vec![Vec::new(); self.next.len()];
        for (at, next) in self.next.iter().enumerate() {
            next.iter().for_each(|next| needs[*next].push(at));
        }
        let mut before = vec![false; needs.len()];
        let mut path: Vec<usize> = (0..places.len()).filter(|hook| places[*hook].first).collect();
        while let Some(at) = path.pop() {
            if !std::mem::replace(&mut before[at], true) {
                path.append(&mut needs[at]);
            }
        }
        let point = self.point();
        for (hook, place) in places.iter().enumerate() {
            match place.first {
                true => self.follow(hook, point),
                false if before[hook] => {}
                false => self.follow(point, hook),
            }
        }
    }

    fn point(&mut self) -> usize {
        self.waits.push(0);
        self.next.push(Vec::new());
        self.waits.len() - 1
    }

    fn follow(&mut self, before: usize, after: usize) {
        self.next[before].push(after);
        self.waits[after] += 1;
    }

    /// Returns the hooks without dependencies; to be called once.
    pub(super) fn begin(&mut self) -> Vec<usize> {
        let free: Vec<usize> = (0..self.waits.len()).filter(|at| self.waits[*at] == 0).collect();
        let (mut ready, points): (Vec<_>, Vec<_>) = free.into_iter().partition(|at| *at < self.hooks);
        for point in points {
            self.reached(point, &mut ready);
        }
        ready
    }

    /// Marks a hook as run; returns the hooks that are now ready.
    pub(super) fn ran(&mut self, hook: usize) -> Vec<usize> {
        let mut ready = Vec::new();
        self.reached(hook, &mut ready);
        ready
    }

    fn reached(&mut self, at: usize, ready: &mut Vec<usize>) {
        let mut reached = vec![at];
        while let Some(at) = reached.pop() {
            for next in std::mem::take(&mut self.next[at]) {
                self.waits[next] -= 1;
                match self.waits[next] {
                    0 if next < self.hooks => ready.push(next),
                    0 => reached.push(next),
                    _ => {}
                }
            }
        }
    }

    /// Returns all hooks one after the other; `pick` selects among those that are ready. The error contains hooks that
    /// wait for each other, and their dependents.
    pub(super) fn sequence(
        mut self,
        mut pick: impl FnMut(&BTreeSet<usize>) -> usize,
    ) -> Result<Vec<usize>, Vec<usize>> {
        let mut sequence = Vec::with_capacity(self.hooks);
        let mut ready: BTreeSet<usize> = self.begin().into_iter().collect();
        while !ready.is_empty() {
            let hook = pick(&ready);
            ready.remove(&hook);
            sequence.push(hook);
            ready.extend(self.ran(hook));
        }
        match sequence.len() == self.hooks {
            true => Ok(sequence),
            false => Err((0..self.hooks).filter(|hook| !sequence.contains(hook)).collect()),
        }
    }
}

/// Selects the earliest registered of them.
pub(super) fn registered(ready: &BTreeSet<usize>) -> usize {
    ready.first().copied().unwrap_or_default()
}

/// Returns a function that selects any of them, by pseudo-random numbers from the seed (splitmix64).
pub(super) fn shuffled(mut seed: u64) -> impl FnMut(&BTreeSet<usize>) -> usize {
    move |ready| {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^= number >> 31;
        let at = usize::try_from(number % ready.len().max(1) as u64).unwrap_or_default();
        ready.iter().nth(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct A;
    struct B;

    fn hook(node: usize) -> Place {
        Place { node, ..Place::default() }
    }

    #[test]
    fn without_tokens_hooks_keep_the_order_of_registration() {
        let places = [hook(0), hook(1), hook(1), hook(3)];
        let order = Order::new(&places, &vec![vec![], vec![0], vec![1], vec![2]]);
        assert_eq!(order.sequence(registered), Ok(vec![0, 1, 2, 3]));
    }

    #[test]
    fn first_hooks_wait_only_for_their_dependencies() {
        let mut places = [hook(0), hook(1), hook(2), hook(3)];
        places[2].first = true;
        let uses = vec![vec![], vec![], vec![1], vec![0]];
        assert_eq!(Order::new(&places, &uses).sequence(registered), Ok(vec![1, 2, 0, 3]));
        places[1].awaits = vec![Token::of::<A>()];
        places[3].brings = vec![Token::of::<A>()];
        assert_eq!(Order::new(&places, &uses).sequence(registered), Ok(vec![0, 3, 1, 2]));
    }

    #[test]
    fn a_token_moves_a_hook_behind_its_providers() {
        let mut places = [hook(0), hook(1), hook(2)];
        places[0].awaits = vec![Token::of::<A>()];
        places[1].brings = vec![Token::of::<A>()];
        places[2].brings = vec![Token::of::<A>(), Token::of::<B>()];
        let order = Order::new(&places, &vec![vec![]; 3]);
        assert_eq!(order.sequence(registered), Ok(vec![1, 2, 0]));
        // No hook provides this one.
        let mut alone = [hook(0)];
        alone[0].awaits = vec![Token::of::<B>()];
        assert_eq!(Order::new(&alone, &vec![]).sequence(registered), Ok(vec![0]));
    }

    #[test]
    fn a_circle_is_found() {
        let mut places = [hook(0), hook(1), hook(2)];
        (places[0].awaits, places[0].brings) = (vec![Token::of::<A>()], vec![Token::of::<B>()]);
        (places[1].awaits, places[1].brings) = (vec![Token::of::<B>()], vec![Token::of::<A>()]);
        assert_eq!(Order::new(&places, &vec![vec![]; 3]).sequence(registered), Err(vec![0, 1]));
    }

    proptest! {
        /// Whatever the seed, a hook runs after all hooks of its constructor's dependencies, including indirect ones
        /// through constructors without hooks.
        #[test]
        fn every_order_is_legal(
            uses in proptest::collection::vec(proptest::collection::vec(0usize..1000, 0..3), 1..30),
            nodes in proptest::collection::vec(0usize..1000, 0..40),
            seed in any::<u64>(),
        ) {
            let count = uses.len();
            let uses: Uses = uses.into_iter().enumerate()
                .map(|(node, used)| used.into_iter().filter(|_| node > 0).map(|u| u % node.max(1)).collect())
                .collect();
            let mut nodes: Vec<usize> = nodes.into_iter().map(|node| node % count).collect();
            nodes.sort_unstable();
            let places: Vec<Place> = nodes.iter().map(|node| hook(*node)).collect();
            let mut above: Vec<BTreeSet<usize>> = Vec::new();
            for used in &uses {
                let all = used.iter().flat_map(|u| above[*u].iter().copied().chain([*u])).collect();
                above.push(all);
            }
            let sequence = Order::new(&places, &uses).sequence(shuffled(seed)).unwrap();
            prop_assert_eq!(sequence.len(), places.len());
            for (at, hook) in sequence.iter().enumerate() {
                for later in &sequence[at + 1..] {
                    prop_assert!(!above[nodes[*hook]].contains(&nodes[*later]));
                    prop_assert!(nodes[*hook] != nodes[*later] || hook < later);
                }
            }
        }
    }
}
