"""The encoding of trees and digests, as JSON texts and tensor names, and of chunks of blosc."""
