# Formula for Linux: brew install --formula ./tinkc.rb. packaging/make-release writes url and sha256; macOS is not supported yet.
class Tinkc < Formula
  desc "Fine-tune and sample language models with the Tinker API, locally or hosted"
  homepage "@HOMEPAGE@"
  url "@HOMEPAGE@/releases/download/v@VERSION@/tinkc-@VERSION@.tar.xz"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on "pkgconf" => :build
  depends_on "curl"
  depends_on "libarchive"
  depends_on "libedit"
  depends_on "libmicrohttpd"
  depends_on :linux
  depends_on "pcre2"
  depends_on "sqlite"
  depends_on "utf8proc"
  depends_on "zstd"

  def install
    # libcurl, libarchive, libmicrohttpd and libedit are opened on first use: the program must find brew's.
    args = %W[-DTINKC_TESTS=OFF -DTINKC_CUDA=OFF -DCMAKE_INSTALL_RPATH=#{HOMEBREW_PREFIX}/lib]
    system "cmake", "-S", ".", "-B", "build", "-G", "Ninja", *args, *std_cmake_args
    system "cmake", "--build", "build"
    system "cmake", "--install", "build"
  end

  test do
    assert_equal "12", shell_output("#{bin}/tinkc sample --temperature 0 'What is 7 + 5?'").strip
  end
end
