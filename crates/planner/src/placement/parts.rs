//! Parts of the tree that are joined link by link.

/// Disjoint parts of the tree, joined link by link (union-find with path halving).
pub(super) struct Parts {
    up: Vec<u32>,
    /// Nodes with enough CPU, by the vertex that stands for a part.
    sizes: Vec<usize>,
}

impl Parts {
    pub(super) fn new(vertices: usize, counted: &[u32]) -> Self {
        let mut sizes = vec![0; vertices];
        for node in counted {
            sizes[*node as usize] = 1;
        }
        Self { up: (0..vertices as u32).collect(), sizes }
    }

    pub(super) fn part_of(&mut self, mut vertex: u32) -> u32 {
        while self.up[vertex as usize] != vertex {
            let above = self.up[self.up[vertex as usize] as usize];
            self.up[vertex as usize] = above;
            vertex = above;
        }
        vertex
    }

    /// The part that `a` and `b` now belong to, and its size.
    pub(super) fn join(&mut self, a: u32, b: u32) -> (u32, usize) {
        let (a, b) = (self.part_of(a), self.part_of(b));
        let (small, large) =
            if self.sizes[a as usize] <= self.sizes[b as usize] { (a, b) } else { (b, a) };
        self.up[small as usize] = large;
        self.sizes[large as usize] += self.sizes[small as usize];
        (large, self.sizes[large as usize])
    }
}
