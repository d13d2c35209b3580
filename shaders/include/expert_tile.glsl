// Which rows of x and whose weights a workgroup multiplies, for products of grouped rows (experts/group_rows.comp). Define TILES, the
// binding, before; after weights.glsl:
//
//   TILES  tiles  [..]  uvec4  in  (expert, first row, rows, 0)
//
// A tile without rows, and one of an expert in another slab, is none of this dispatch. Workgroups of one tile are neighbours: they share its
// rows of x in the cache, which are more than the weights that neighbouring tiles of one expert would share.
layout(binding = TILES) readonly buffer Tiles { uvec4 tiles[]; };

// (first row, the one after the last)
uvec2 tile_rows() {
    const uvec4 tile = tiles[gl_WorkGroupID.y];
    expert = tile.x - first_expert;  // wraps for one before the slab
    return expert < experts ? uvec2(tile.y, tile.y + tile.z) : uvec2(0u);
}
